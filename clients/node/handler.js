// Runs the jobs of a pool with command = ["node", "…"]: job-supervisor's protocol for programs, docs/subprocess.md.
// One JSON object a line, requests on standard input, replies on the descriptor that SUPERVISOR_REPLY_FD names.
"use strict";
const fs = require("node:fs");
const readline = require("node:readline");
const { options: OPTIONS } = require("./definitions.json");
const { encode, milliseconds, newJob } = require("./intake.js");

const MAX_LINE = 1 << 20; // bytes; the worker takes no longer one
const MAX_CHUNK = 16 * 1024; // bytes of JSON
const MAX_TRACEBACK = 64 * 1024; // characters
const MAX_WORDS = 2000; // characters of a message or a log line
const MOMENTS = Object.fromEntries(
  Object.values(OPTIONS).filter((one) => one.check === "moment").map((one) => [one.column, one.name]),
);
const LEVELS = ["debug", "info", "warning", "error"];

/** This job can never succeed: no further attempt. */
class Fail extends Error {}

/** Run this job again after `after`, "30s" or milliseconds; without it the pool's policy decides. */
class Retry extends Error {
  constructor(message = "the handler asked for a retry", { after } = {}) {
    super(message);
    this.after = after === undefined ? undefined : seconds("after", after);
  }
}

/**
 * Say hello, run `handler` for each job until the worker says bye, and end the process.
 *
 * `handler` is a function (payload, ctx), or a class or an object with `handle` and optionally `setup` and `teardown`.
 */
async function serve(handler, { capabilities } = {}) {
  if (!process.env.SUPERVISOR_REPLY_FD) {
    throw new Error("this program must be started by a pool, with command = [...]: SUPERVISOR_REPLY_FD is not set");
  }
  // From a terminal or a whole cgroup these signals are meant for the supervisor, which drains; the worker's come
  // after a cancel that says now, or after bye.
  let mayEnd = false;
  for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, () => mayEnd && process.exit(1));

  const target = handler.prototype?.handle ? new handler() : handler;
  let greeting = {};
  let current = null;

  async function run(request) {
    const { ctx, close, cancel } = context(greeting, request);
    current = { id: request.id, cancel };
    const reply = await outcome(target, request, ctx, close);
    current = null;
    say({ ...reply, id: request.id });
  }

  for await (const line of readline.createInterface({ input: process.stdin })) {
    const message = JSON.parse(line);
    if (message.type === "hello") {
      greeting = message;
      await target.setup?.(context(greeting, {}).ctx);
      say({ type: "hello", protocol: 1, ...(capabilities && { capabilities: [...capabilities] }) });
    } else if (message.type === "job") {
      mayEnd = false;
      run(message); // not awaited: a cancel may come
    } else if (message.type === "cancel" && current?.id === message.id) {
      current.cancel();
      mayEnd = message.now;
    } else if (message.type === "bye") {
      mayEnd = true;
      await target.teardown?.(context(greeting, {}).ctx);
      process.exit(0);
    }
  }
  process.exit(1); // the worker is gone
}

/** What the handler sees of a job, and how the program ends and cancels it. */
function context(hello, request) {
  const abort = new AbortController();
  const children = [];
  let open = request.id !== undefined;
  const about = (message) => open && say({ ...message, id: request.id });
  const ctx = {
    jobId: request.job_id ?? 0,
    idempotencyKey: request.idempotency_key ?? "",
    type: request.job_type ?? "",
    attempt: request.attempt ?? 0,
    timeout: (request.timeout ?? 0) * 1000,
    options: hello.options ?? {},
    capabilities: hello.capabilities ?? [],
    device: hello.device ?? null,
    signal: abort.signal,
    log: logger(),
    get cancelled() {
      return abort.signal.aborted;
    },
    progress(fraction, text = "") {
      if (!Number.isFinite(fraction)) throw new TypeError(`${fraction} is not a number from 0 to 1`);
      about({ type: "progress", fraction: Math.min(Math.max(fraction, 0), 1), text: words(text) });
    },
    emit(chunk) {
      const size = Buffer.byteLength(encode("chunk", chunk));
      if (size > MAX_CHUNK) throw new RangeError(`the chunk has ${size} bytes of JSON; the limit is ${MAX_CHUNK} (16 KiB)`);
      about({ type: "emit", chunk });
    },
    extend(duration) {
      about({ type: "extend", seconds: seconds("duration", duration) });
    },
    enqueue(type, payload, options) {
      const child = childOf(newJob(type, payload, options), options);
      if (!open) throw new Error("the job has ended: what it enqueues now cannot be committed with it");
      children.push(child);
    },
  };
  const close = () => {
    open = false;
    return children;
  };
  return { ctx, close, cancel: () => abort.abort() };
}

/** The reply about a job: what its handler returns or throws. */
async function outcome(target, request, ctx, close) {
  let value;
  try {
    value = await (target.handle ? target.handle(request.payload, ctx) : target(request.payload, ctx));
  } catch (error) {
    return failure(error);
  } finally {
    close();
  }
  try {
    encode("result", value ?? null);
  } catch (error) {
    return { type: "error", kind: "result", message: words(error.message) };
  }
  const children = close();
  const reply = { type: "result", value: value ?? null, ...(children.length > 0 && { enqueue: children }) };
  if (Buffer.byteLength(JSON.stringify(reply)) <= MAX_LINE - 100) return reply;
  return { type: "error", kind: "result", message: "the result, with the jobs that it enqueues, is too large (1 MiB)" };
}

function failure(error) {
  const message = words(error instanceof Error ? error.message : String(error));
  const traceback = error?.stack === undefined ? null : words(error.stack, MAX_TRACEBACK);
  if (error instanceof Fail) return { type: "error", message, permanent: true };
  if (error instanceof Retry) return { type: "error", message, retry: true, after: error.after, traceback };
  return { type: "error", message: words(String(error)), traceback };
}

/** A job as the protocol has it. Its time is fixed now, like that of any other job. */
function childOf(job, options = {}) {
  const child = { type: job.type, payload: JSON.parse(job.payload) };
  const stored = { ...job, ...job.extra };
  for (const [key, value] of Object.entries(options)) {
    const { name, column, check } = OPTIONS[key];
    if (value === undefined || value === null || stored[column] === undefined) continue;
    if (check === "json_object") child[name] = JSON.parse(stored[column]);
    else child[check === "delay_of" ? MOMENTS[column] : name] = stored[column];
  }
  return child;
}

/** `log("event", fields)`, or with a level: `log.warning("event", fields)`. Logging never fails. */
function logger() {
  const write = (level) => (event, fields = {}) => {
    const message = { type: "log", level, text: words(event), fields: {} };
    for (const [name, value] of Object.entries(fields ?? {})) message.fields[name] = plain(value);
    say(JSON.stringify(message).length < MAX_LINE / 4 ? message : { ...message, fields: { left_out: "too long" } });
  };
  return Object.assign(write("info"), Object.fromEntries(LEVELS.map((level) => [level, write(level)])));
}

function plain(value) {
  try {
    const text = JSON.stringify(value);
    if (text !== undefined && text.length <= 16384) return value;
  } catch {
    // A bigint, or an object that contains itself.
  }
  return words(value instanceof Object ? Object.prototype.toString.call(value) : value);
}

/** The beginning, where an error's class stands, and the end. */
function words(text, limit = MAX_WORDS) {
  const whole = String(text);
  const begin = limit / 4;
  const cut = whole.length <= limit ? whole : `${whole.slice(0, begin)} … ${whole.slice(begin + 3 - limit)}`;
  return cut.toWellFormed();
}

function seconds(field, duration) {
  return milliseconds(field, duration) / 1000;
}

function say(message) {
  let data = Buffer.from(`${JSON.stringify(message)}\n`);
  while (data.length) data = data.subarray(fs.writeSync(Number(process.env.SUPERVISOR_REPLY_FD), data));
}

module.exports = { serve, Fail, Retry };
