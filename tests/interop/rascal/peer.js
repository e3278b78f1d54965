// node's rascal at the other end: reads a job as JSON on standard input, prints what came of it.
//
//   {"do": "publish", "config": {...}, "publication": "p", "messages": [{"body": ..., "key": ...}]}
//   {"do": "consume", "config": {...}, "subscription": "s", "count": 1, "fail": [strategy, ...]}
//   {"do": "nuke", "config": {...}}
//   {"do": "forward", "config": {...}, "subscription": "s", "publication": "p", "overrides": {...}}
"use strict";

const { BrokerAsPromised, withDefaultConfig } = require("rascal");

async function publish(broker, job) {
  for (const { body, key, options } of job.messages) {
    const publication = await broker.publish(job.publication, body, {
      routingKey: key,
      options: options || {},
    });
    await new Promise((resolve, reject) => {
      publication.on("success", resolve).on("error", reject).on("return", reject);
    });
  }
  return "published";
}

async function consume(broker, job) {
  const subscription = await broker.subscribe(job.subscription);
  const seen = [];
  let done = 0;
  await new Promise((resolve, reject) => {
    subscription.on("error", (error) => job.fail || reject(error));
    subscription.on("invalid_content", reject);
    subscription.on("message", (message, content, ackOrNack) => {
      if (seen.length >= job.count) return; // unsettled: the queue has it back when we close
      seen.push({
        content: Buffer.isBuffer(content) ? content.toString("latin1") : content,
        exchange: message.fields.exchange,
        key: message.fields.routingKey,
        properties: message.properties,
      });
      const settled = () => (done += 1) >= job.count && resolve();
      if (job.fail) {
        ackOrNack(new Error("failed in node"), job.fail, settled);
      } else {
        ackOrNack(undefined, settled);
      }
    });
  });
  return seen;
}

async function forward(broker, job) {
  const subscription = await broker.subscribe(job.subscription);
  return new Promise((resolve, reject) => {
    subscription.on("error", reject);
    subscription.on("message", async (message, content, ackOrNack) => {
      const publication = await broker.forward(job.publication, message, job.overrides || {});
      publication.on("error", reject).on("return", reject);
      publication.on("success", () => ackOrNack(undefined, () => resolve("forwarded")));
    });
  });
}

async function nuke(broker) {
  await broker.nuke();
  return "nuked";
}

async function main() {
  let text = "";
  for await (const part of process.stdin) text += part;
  const job = JSON.parse(text);
  const broker = await BrokerAsPromised.create(withDefaultConfig(job.config));
  broker.on("error", () => {});
  const result = await { publish, consume, forward, nuke }[job.do](broker, job);
  await broker.shutdown();
  console.log(JSON.stringify(result));
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
