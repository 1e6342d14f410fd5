// graphile-worker with its local queue of 500: the driver, and a worker. What driver.py and tally.py are to the others.
//
//   setup | work | fill JOBS | fill-many JOBS | feed JOBS | versions

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.env.BENCH_NODE, "package.json"));
const { run, makeWorkerUtils, runMigrations, Logger } = require("graphile-worker");

const PAUSE = [20, 120]; // milliseconds between two jobs, at random
const WARM_UP = 3;
const NOTE_EVERY = 0.05; // seconds
const connectionString = process.env.BENCH_POSTGRES;
const [what, argument] = process.argv.slice(2);
const jobs = Number(argument);
const seconds = () => Number(process.hrtime.bigint()) / 1e9; // CLOCK_MONOTONIC
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
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

function arrival(descriptor) {
  return new Promise((resolve, reject) => {
    fs.read(descriptor, Buffer.alloc(24), 0, 24, null, (error, size, buffer) => {
      if (error) reject(error);
      else resolve([Number(buffer.readBigInt64LE(0)), buffer.readDoubleLE(16)]);
    });
  });
}

async function feed(utils) {
  const descriptor = fs.openSync(process.env.BENCH_ARRIVALS, "r+");
  const samples = [];
  for (let number = -WARM_UP; number < jobs; number++) {
    await pause(PAUSE[0] + Math.random() * (PAUSE[1] - PAUSE[0]));
    const before = seconds();
    await utils.addJob("arrive", { number });
    const after = seconds();
    let begun;
    do begun = await arrival(descriptor);
    while (begun[0] !== number);
    if (number >= 0) samples.push([before, after, begun[1]]);
  }
  console.log(JSON.stringify(samples));
}

async function work() {
  const count = { first: 0, last: 0, jobs: 0, longest: 0 };
  const file = path.join(process.env.BENCH_TALLY, `${process.pid}.tally`);
  const cells = Buffer.alloc(32);
  let noted = { jobs: 0, at: 0 };
  const note = () => {
    if (noted.jobs === count.jobs) return;
    noted = { jobs: count.jobs, at: count.last };
    [count.first, count.last, count.jobs, count.longest].forEach((value, n) => cells.writeDoubleLE(value, 8 * n));
    fs.writeFileSync(file, cells);
  };
  setInterval(note, NOTE_EVERY * 1000);
  const noop = () => {
    const now = seconds();
    if (count.jobs) count.longest = Math.max(count.longest, now - count.last);
    else count.first = now;
    count.last = now;
    count.jobs += 1;
    if (now - noted.at > NOTE_EVERY) note();
  };
  let descriptor = -1;
  const arrive = (payload) => {
    const now = seconds();
    const line = Buffer.alloc(24);
    line.writeBigInt64LE(BigInt(payload.number), 0);
    line.writeBigInt64LE(BigInt(process.pid), 8);
    line.writeDoubleLE(now, 16);
    if (descriptor < 0) descriptor = fs.openSync(process.env.BENCH_ARRIVALS, "w");
    fs.writeSync(descriptor, line);
  };
  const runner = await run({
    connectionString,
    logger,
    noHandleSignals: true,
    taskList: { noop, arrive },
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
  await { fill, "fill-many": fillMany, feed }[what](utils);
  process.exit(0);
}
