"use strict";
const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const { once } = require("node:events");
const path = require("node:path");
const readline = require("node:readline");
const { test } = require("node:test");

/** A program that serves with this source, and the worker's end of its pipes. */
function worker(t, source) {
  const code = `const { serve, Fail, Retry } = require("job-supervisor/handler"); ${source}`;
  const program = spawn(process.execPath, ["-e", code], {
    cwd: path.dirname(__dirname),
    env: { ...process.env, SUPERVISOR_REPLY_FD: "3" },
    stdio: ["pipe", "inherit", "inherit", "pipe"],
  });
  t.after(() => program.kill("SIGKILL"));
  const lines = readline.createInterface({ input: program.stdio[3] })[Symbol.asyncIterator]();
  return {
    program,
    ended: once(program, "exit"),
    send: (message) => program.stdin.write(`${JSON.stringify(message)}\n`),
    next: async () => JSON.parse((await lines.next()).value),
  };
}

test("a signal ends the program only after the worker has asked the running job to stop", async (t) => {
  const { program, ended, send, next } = worker(
    t,
    `serve(async (payload, ctx) => {
      ctx.progress(0);
      if (payload === "stops") await new Promise((stop) => ctx.signal.addEventListener("abort", stop));
      if (payload === "never stops") await new Promise((stop) => setInterval(() => {}, 1000));
      return payload;
    });`,
  );
  send({ type: "hello", protocol: 1 });
  assert.deepEqual(await next(), { type: "hello", protocol: 1 });
  const begin = async (id, payload) => {
    send({ type: "job", id, job_id: id, payload });
    assert.equal((await next()).type, "progress");
  };
  const stop = async (id, now) => {
    send({ type: "cancel", id, now });
    assert.deepEqual(await next(), { type: "result", value: "stops", id });
  };
  await begin(1, "stops");
  program.kill("SIGTERM"); // meant for the supervisor, which lets this job finish
  await stop(1, false);
  await begin(2, "stops");
  await stop(2, true);
  await begin(3, "stops");
  program.kill("SIGTERM");
  await stop(3, false);
  await begin(4, "never stops");
  send({ type: "cancel", id: 4, now: true });
  const again = setInterval(() => program.kill("SIGTERM"), 20);
  assert.deepEqual(await ended, [1, null]);
  clearInterval(again);
});

test("a log line that JSON cannot hold, or that is too long, is no fault of the program", async (t) => {
  const { send, next } = worker(
    t,
    `serve((payload, ctx) => {
      ctx.log("a".repeat(5000), { big: 1n, long: "x".repeat(20000), fine: [1] });
      ctx.log.error("many", Object.fromEntries(Array.from({ length: 100 }, (_, n) => [n, "x".repeat(10000)])));
    });`,
  );
  send({ type: "hello", protocol: 1 });
  await next();
  send({ type: "job", id: 1, payload: {} });
  const [first, second] = [await next(), await next()];
  assert.deepEqual([first.level, first.text.length, first.fields.big, first.fields.fine], ["info", 2000, "1", [1]]);
  assert.equal(first.fields.long.length, 2000);
  assert.deepEqual([second.level, second.fields], ["error", { left_out: "too long" }]);
  assert.equal((await next()).type, "result");
});
