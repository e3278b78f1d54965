"use strict";
// rascal (node): broker.publish in a window, and a subscription that acks.

const rascal = require("rascal");
const { BODY, PREFETCH, QUEUE, WINDOW, messages, run, timed, url } = require("./load");

const address = new URL(url);
const vhost = decodeURIComponent(address.pathname.slice(1)) || "/";

const config = {
  vhosts: {
    [vhost]: {
      connection: { url },
      queues: { [QUEUE]: { options: { durable: true } } },
      publications: { bench: { queue: QUEUE, confirm: true, options: { persistent: true } } },
      subscriptions: { bench: { queue: QUEUE, prefetch: PREFETCH } },
    },
  },
};

async function main() {
  const broker = await rascal.BrokerAsPromised.create(rascal.withDefaultConfig(config));
  broker.on("error", (error) => console.error(error.message));

  async function publishOne() {
    const publication = await broker.publish("bench", BODY);
    await new Promise((resolve, reject) => {
      publication.on("success", resolve).on("error", reject).on("return", reject);
    });
  }

  async function publishAll() {
    let left = messages;
    async function worker() {
      while (left-- > 0) await publishOne();
    }
    await Promise.all(Array.from({ length: Math.min(WINDOW, messages) }, worker));
  }

  async function consumeAll() {
    const subscription = await broker.subscribe("bench");
    let left = messages;
    await new Promise((resolve, reject) => {
      subscription
        .on("message", (message, content, ackOrNack) => {
          ackOrNack();
          if (--left === 0) resolve();
        })
        .on("error", reject);
    });
  }

  const publish = await timed(publishAll);
  const consume = await timed(consumeAll);
  await broker.shutdown();
  return { publish, consume };
}

run("rascal", main);
