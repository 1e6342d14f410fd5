// graphile-worker with its local queue of 500: the driver, and a worker. What driver.py and tally.py are to the others.
//
//   setup | work | fill JOBS | fill-many JOBS | feed JOBS | slow | versions

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

import { arrive, counted, feed, seconds, slow } from "./tally.mjs";

const require = createRequire(path.join(process.env.BENCH_NODE, "package.json"));
const { run, makeWorkerUtils, runMigrations, Logger } = require("graphile-worker");

const connectionString = process.env.BENCH_POSTGRES;
const [what, argument] = process.argv.slice(2);
const jobs = Number(argument);
const logger = new Logger(() => (level, message) => level === "error" && console.error(message));

async function timed(action) {
  const began = seconds();
  await action();
  console.log(seconds() - began);
}

async function fill(utils) {
  await timed(async () => {
    for (let n = 0; n < jobs; n++) await utils.addJob("noop", {});
  });
}

async function fillMany(utils) {
  const thousand = Array.from({ length: 1000 }, () => ({ identifier: "noop", payload: {} }));
  await timed(async () => {
    for (let n = 0; n < jobs; n += 1000) await utils.addJobs(thousand.slice(0, jobs - n));
  });
}

async function work() {
  const { mark } = counted();
  const runner = await run({
    connectionString,
    logger,
    noHandleSignals: true,
    taskList: { noop: mark, arrive: (payload) => arrive(payload.number), slow },
    preset: {
      worker: {
        concurrentJobs: 24,
        maxPoolSize: 10,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  });
  await runner.promise;
}

if (what === "versions") {
  const found = JSON.parse(fs.readFileSync(require.resolve("graphile-worker/package.json")));
  console.log(JSON.stringify({ "graphile-worker": found.version, "Node.js": process.versions.node }));
} else if (what === "setup") {
  await runMigrations({ connectionString, logger });
} else if (what === "work") {
  await work();
} else {
  const utils = await makeWorkerUtils({ connectionString, logger });
  const feedArrivals = () => feed(jobs, (number) => utils.addJob("arrive", { number }));
  const addSlow = () => utils.addJob("slow", {});
  await { fill, "fill-many": fillMany, feed: feedArrivals, slow: addSlow }[what](utils);
  process.exit(0);
}
