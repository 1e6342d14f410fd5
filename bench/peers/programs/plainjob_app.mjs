// plainjob on better-sqlite3: the driver, and a worker. What driver.py and tally.py are to the others.
//
//   fill JOBS | fill-many JOBS | feed JOBS | work | versions

import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

import { arrive, counted, feed, seconds } from "./tally.mjs";

const require = createRequire(path.join(process.env.BENCH_NODE, "package.json"));
const Database = require("better-sqlite3");
const { better, defineQueue, defineWorker } = await import(pathToFileURL(require.resolve("plainjob")));

const [what, argument] = process.argv.slice(2);
const jobs = Number(argument);
const quiet = { error: console.error, warn() {}, info() {}, debug() {} };

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

function feedArrivals() {
  const queue = open();
  return feed(jobs, (number) => void queue.add("arrive", { number }));
}

function work() {
  const queue = open();
  const { mark, note } = counted();
  const options = { queue, logger: quiet };
  // A worker takes one type, and gives up for good when SQLite tells it that the database is locked.
  const [type, handler] = process.env.BENCH_TYPE === "arrive" ? ["arrive", (job) => arrive(JSON.parse(job.data).number)] : ["noop", mark];
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

const actions = { fill, "fill-many": fillMany, feed: feedArrivals, work, versions };
await actions[what]();
if (what !== "work") process.exit(0);
