"use strict";
// rascal (node): broker.publish in a window, and a subscription that acks.
// Called as: node rascal.js URL MESSAGES

const rascal = require("rascal");

const QUEUE = "bench";
const BODY = Buffer.alloc(256, "x");
const WINDOW = 1000;
const PREFETCH = 200;

const [url, messages] = [process.argv[2], Number(process.argv[3])];
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

async function timed(work) {
  const start = process.hrtime.bigint();
  const before = process.cpuUsage();
  await work();
  const { user, system } = process.cpuUsage(before);
  return { passed: Number(process.hrtime.bigint() - start) / 1e9, processor: (user + system) / 1e6 };
}

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
  const versions = { rascal: require("rascal/package.json").version, node: process.versions.node };
  console.log(JSON.stringify({ publish, consume, versions }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
