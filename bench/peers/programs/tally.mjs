// What the programs of the peers on Node.js share: the clock, the count of a worker, and the feeding of an idle queue.

import fs from "node:fs";
import path from "node:path";

const PAUSE = [20, 120]; // milliseconds between two jobs, at random
const WARM_UP = 3;
const NOTE_EVERY = 0.05; // seconds

export const seconds = () => Number(process.hrtime.bigint()) / 1e9; // CLOCK_MONOTONIC
const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

// The Python handlers keep their count in a mapped file; here it is written now and then: in the handler,
// since a busy worker never lets a timer run, and by a timer when there is nothing more to do.
export function counted() {
  const count = { first: 0, last: 0, jobs: 0, longest: 0 };
  const file = fs.openSync(path.join(process.env.BENCH_TALLY, `${process.pid}.tally`), "w");
  const cells = Buffer.alloc(32);
  let noted = { jobs: 0, at: 0 };
  const note = () => {
    if (noted.jobs === count.jobs) return;
    noted = { jobs: count.jobs, at: count.last };
    [count.first, count.last, count.jobs, count.longest].forEach((value, n) => cells.writeDoubleLE(value, 8 * n));
    fs.writeSync(file, cells, 0, cells.length, 0); // over the last one: whoever reads meanwhile never finds it empty
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
  return { mark, note };
}

let arrivals = -1;

// A handler's first line: 24 bytes through the named pipe.
export function arrive(number) {
  const now = seconds();
  const line = Buffer.alloc(24);
  line.writeBigInt64LE(BigInt(number), 0);
  line.writeBigInt64LE(BigInt(process.pid), 8);
  line.writeDoubleLE(now, 16);
  if (arrivals < 0) arrivals = fs.openSync(process.env.BENCH_ARRIVALS, "w");
  fs.writeSync(arrivals, line);
}

// A handler that goes on until the benchmark releases it: tally.py's slow.
export async function slow() {
  arrive(1);
  while (!fs.existsSync(path.join(process.env.BENCH_TALLY, "released"))) await pause(20);
  arrive(2);
}

function arrival(descriptor) {
  return new Promise((resolve, reject) => {
    fs.read(descriptor, Buffer.alloc(24), 0, 24, null, (error, size, buffer) => {
      if (error) reject(error);
      else resolve([Number(buffer.readBigInt64LE(0)), buffer.readDoubleLE(16)]);
    });
  });
}

// `add` enqueues the job with a number, and may return a promise. One read at a time.
export async function feed(jobs, add) {
  const descriptor = fs.openSync(process.env.BENCH_ARRIVALS, "r+");
  const samples = [];
  for (let number = -WARM_UP; number < jobs; number++) {
    await pause(PAUSE[0] + Math.random() * (PAUSE[1] - PAUSE[0]));
    const before = seconds();
    const added = add(number);
    if (added instanceof Promise) await added;
    const after = seconds();
    let begun;
    do begun = await arrival(descriptor);
    while (begun[0] !== number);
    if (number >= 0) samples.push([before, after, begun[1]]);
  }
  console.log(JSON.stringify(samples));
}
