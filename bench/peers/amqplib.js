"use strict";
// amqplib (node): a confirm channel with a window of publishes, and a consumer that acks.

const amqplib = require("amqplib");
const { BODY, PREFETCH, QUEUE, WINDOW, messages, run, timed, url } = require("./load");

async function main() {
  const connection = await amqplib.connect(url);
  const publisher = await connection.createConfirmChannel();
  await publisher.assertQueue(QUEUE, { durable: true });
  const consumer = await connection.createChannel();
  await consumer.prefetch(PREFETCH);

  const publishAll = () =>
    new Promise((resolve, reject) => {
      let sent = 0;
      let confirmed = 0;
      function send() {
        while (sent < messages && sent - confirmed < WINDOW) {
          sent++;
          publisher.sendToQueue(QUEUE, BODY, { persistent: true }, onConfirm);
        }
      }
      function onConfirm(error) {
        if (error) return reject(error);
        if (++confirmed === messages) return resolve();
        send();
      }
      send();
    });

  const consumeAll = () =>
    new Promise((resolve, reject) => {
      let left = messages;
      consumer
        .consume(QUEUE, (message) => {
          consumer.ack(message);
          if (--left === 0) resolve();
        })
        .catch(reject);
    });

  const publish = await timed(publishAll);
  const consume = await timed(consumeAll);
  await consumer.close(); // after the last ack
  await connection.close();
  return { publish, consume };
}

run("amqplib", main);
