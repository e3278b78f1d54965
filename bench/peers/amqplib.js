"use strict";
// amqplib (node): a confirm channel with a window of publishes, and a consumer that acks.
// Called as: node amqplib.js URL MESSAGES

const amqplib = require("amqplib");

const QUEUE = "bench";
const BODY = Buffer.alloc(256, "x");
const WINDOW = 1000;
const PREFETCH = 200;

const [url, messages] = [process.argv[2], Number(process.argv[3])];

async function timed(work) {
  const start = process.hrtime.bigint();
  const before = process.cpuUsage();
  await work();
  const { user, system } = process.cpuUsage(before);
  return { passed: Number(process.hrtime.bigint() - start) / 1e9, processor: (user + system) / 1e6 };
}

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
  const versions = { amqplib: require("amqplib/package.json").version, node: process.versions.node };
  console.log(JSON.stringify({ publish, consume, versions }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
