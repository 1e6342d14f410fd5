// plainjob on better-sqlite3: the driver, and a worker. What driver.py and tally.py are to the others.
//
//   fill JOBS | fill-many JOBS | feed JOBS | work | versions

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const require = createRequire(path.join(process.env.BENCH_NODE, "package.json"));
const Database = require("better-sqlite3");
const { better, defineQueue, defineWorker } = await import(pathToFileURL(require.resolve("plainjob")));

const PAUSE = [20, 120]; // milliseconds between two jobs, at random
const WARM_UP = 3;
const NOTE_EVERY = 0.05; // seconds
const [what, argument] = process.argv.slice(2);
const jobs = Number(argument);
const quiet = { error: console.error, warn() {}, info() {}, debug() {} };
const seconds = () => Number(process.hrtime.bigint()) / 1e9; // CLOCK_MONOTONIC
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

function open() {
  return defineQueue({ connection: better(new Database(process.env.BENCH_DATABASE)), logger: quiet });
}

function timed(action) {
  const began = seconds();
  action();
  console.log(seconds() - began);
}

function fill() {
  const queue = open();
  timed(() => {
    for (let n = 0; n < jobs; n++) queue.add("noop", {});
  });
}

function fillMany() {
  const queue = open();
  const thousand = Array.from({ length: 1000 }, () => ({}));
  timed(() => {
    for (let n = 0; n < jobs; n += 1000) queue.addMany("noop", thousand);
  });
}

// One read at a time: a handler's first line comes as 24 bytes through the named pipe.
function arrival(descriptor) {
  return new Promise((resolve, reject) => {
    fs.read(descriptor, Buffer.alloc(24), 0, 24, null, (error, size, buffer) => {
      if (error) reject(error);
      else resolve([Number(buffer.readBigInt64LE(0)), buffer.readDoubleLE(16)]);
    });
  });
}

async function feed() {
  const queue = open();
  const descriptor = fs.openSync(process.env.BENCH_ARRIVALS, "r+");
  const samples = [];
  for (let number = -WARM_UP; number < jobs; number++) {
    await pause(PAUSE[0] + Math.random() * (PAUSE[1] - PAUSE[0]));
    const before = seconds();
    queue.add("arrive", { number });
    const after = seconds();
    let begun;
    do begun = await arrival(descriptor);
    while (begun[0] !== number);
    if (number >= 0) samples.push([before, after, begun[1]]);
  }
  console.log(JSON.stringify(samples));
}

// The Python handlers keep their count in a mapped file; here it is written now and then: in the handler,
// since a busy worker never lets a timer run, and by a timer when there is nothing more to do.
function work() {
  const queue = open();
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
  const mark = () => {
    const now = seconds();
    if (count.jobs) count.longest = Math.max(count.longest, now - count.last);
    else count.first = now;
    count.last = now;
    count.jobs += 1;
    if (now - noted.at > NOTE_EVERY) note();
  };
  let descriptor = -1;
  const arrive = (job) => {
    const now = seconds();
    const line = Buffer.alloc(24);
    line.writeBigInt64LE(BigInt(JSON.parse(job.data).number), 0);
    line.writeBigInt64LE(BigInt(process.pid), 8);
    line.writeDoubleLE(now, 16);
    if (descriptor < 0) descriptor = fs.openSync(process.env.BENCH_ARRIVALS, "w");
    fs.writeSync(descriptor, line);
  };
  const options = { queue, logger: quiet };
  // A worker takes one type, and gives up for good when SQLite tells it that the database is locked.
  const [type, handler] = process.env.BENCH_TYPE === "arrive" ? ["arrive", arrive] : ["noop", mark];
  defineWorker(type, handler, options).start().catch(() => {
    note();
    process.exit(1);
  });
}

function versions() {
  const version = (name) => JSON.parse(fs.readFileSync(path.join(process.env.BENCH_NODE, "node_modules", name, "package.json"))).version;
  const sqlite = new Database(":memory:").prepare("SELECT sqlite_version() AS version").get().version;
  console.log(JSON.stringify({ plainjob: version("plainjob"), "better-sqlite3": version("better-sqlite3"), "its SQLite": sqlite, "Node.js": process.versions.node }));
}

const actions = { fill, "fill-many": fillMany, feed, work, versions };
await actions[what]();
if (what !== "work") process.exit(0);
