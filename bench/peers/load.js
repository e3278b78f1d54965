"use strict";
// Code shared by the peers written in JavaScript; the figures are those of load.py.
// Each is called as: node PEER.js URL MESSAGES

const { readFileSync } = require("node:fs");
const { join } = require("node:path");

const [url, messages] = [process.argv[2], Number(process.argv[3])];

async function timed(work) {
  const start = process.hrtime.bigint();
  const before = process.cpuUsage();
  await work();
  const { user, system } = process.cpuUsage(before);
  return { passed: Number(process.hrtime.bigint() - start) / 1e9, processor: (user + system) / 1e6 };
}

function run(name, main) {
  main()
    .then(({ publish, consume }) => {
      const description = join(__dirname, "node_modules", name, "package.json");
      const { version } = JSON.parse(readFileSync(description, "utf8"));
      const versions = { [name]: version, node: process.versions.node };
      console.log(JSON.stringify({ publish, consume, versions }));
    })
    .catch((error) => {
      console.error(error);
      process.exit(1);
    });
}

module.exports = {
  QUEUE: "bench",
  BODY: Buffer.alloc(256, "x"),
  WINDOW: 1000,
  PREFETCH: 200,
  url,
  messages,
  timed,
  run,
};
