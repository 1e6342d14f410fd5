// job-supervisor's protocol for programs, in Node.js 18 or newer: one JSON object a line, requests on
// standard input, replies on the descriptor that SUPERVISOR_REPLY_FD names. No dependencies; copy it.
"use strict";
const fs = require("node:fs");
const readline = require("node:readline");

const MAX_LINE = 1 << 20; // bytes; the worker takes no longer one

/** This job can never succeed: no further attempt. */
class Fail extends Error {}

/** Run this job again, `after` a duration ("30s") or seconds; without it the pool's policy decides. */
class Retry extends Error {
  constructor(message, after) {
    super(message);
    this.after = after;
  }
}

function say(message) {
  let data = Buffer.from(JSON.stringify(message) + "\n");
  if (data.length > MAX_LINE && message.type === "result") {
    const { id } = message;
    return say({ type: "error", id, kind: "result", message: "the result is too large" });
  }
  while (data.length) data = data.subarray(fs.writeSync(Number(process.env.SUPERVISOR_REPLY_FD), data));
}

function lastWord(id, error) {
  const message = error instanceof Error ? error.message : String(error);
  if (error instanceof Fail) return { type: "error", id, message, permanent: true };
  if (error instanceof Retry) return { type: "error", id, message, retry: true, after: error.after };
  return { type: "error", id, message: String(error), traceback: error?.stack ?? null };
}

/** Run `handle(payload, job)` for each job; `setup(options, device)`, if given, once before the first. */
async function serve(handle, setup) {
  // From a terminal or a whole cgroup these mean the supervisor, which drains; the worker's come after a
  // cancel that says now, or after bye.
  let mayEnd = false;
  for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => mayEnd && process.exit(1));

  let current = null;
  async function run(request) {
    const { id, payload, job_id: jobId, job_type: type, attempt } = request;
    const about = (message) => current === job && say({ ...message, id });
    const job = {
      jobId, type, attempt, cancelled: false,
      progress: (fraction, text = "") => about({ type: "progress", fraction, text }),
      extend: (seconds) => about({ type: "extend", seconds }),
      log: (text, fields = {}, level = "info") => say({ type: "log", text, fields, level }),
    };
    current = job;
    job.id = id;
    let word;
    try {
      word = { type: "result", id, value: (await handle(payload, job)) ?? null };
      JSON.stringify(word); // what cannot be said is the handler's failure, not the program's end
    } catch (error) {
      word = lastWord(id, error);
    }
    current = null;
    say(word);
  }

  for await (const line of readline.createInterface({ input: process.stdin })) {
    const message = JSON.parse(line);
    if (message.type === "hello") {
      if (setup) await setup(message.options, message.device);
      say({ type: "hello", protocol: 1 });
    } else if (message.type === "job") {
      run(message); // not awaited: a cancel may come
    } else if (message.type === "cancel" && current?.id === message.id) {
      current.cancelled = true;
      mayEnd = message.now;
    } else if (message.type === "bye") {
      process.exit(0);
    }
  }
  process.exit(1); // the worker is gone
}

module.exports = { serve, Fail, Retry };
