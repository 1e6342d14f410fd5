"use strict";
const assert = require("node:assert/strict");
const fs = require("node:fs");
const { test } = require("node:test");
const Database = require("better-sqlite3");
const { Conflict, InvalidJob, JobNotFound, Queue, StoreError } = require("..");
const { connection, database, folder, jobsIn, program } = require("./kit.js");

test("the first enqueue on a new file makes the database and its tables", (t) => {
  const file = database(t);
  const queue = new Queue(file);
  const before = Date.now();
  const id = queue.enqueue("tag", { path: "cat.jpg" }, { priority: 5, requires: "gpu, a", maxAttempts: 2, meta: { a: 1 } });
  const job = queue.job(id);
  queue.close();
  const { scheduledAt, ...rest } = job;
  assert.ok(scheduledAt.getTime() >= before - 1 && scheduledAt.getTime() <= Date.now());
  assert.deepEqual(rest, {
    id, type: "tag", payload: { path: "cat.jpg" }, status: "pending", priority: 5, requires: ["a", "gpu"], attempts: 0,
    maxAttempts: 2, crashes: 0, uniqueKey: null, progress: null, progressText: null,
    result: null, lastError: null, meta: { a: 1 },
    startedAt: null, completedAt: null, cancelRequestedAt: null,
  });
  assert.equal(fs.statSync(file).mode & 0o777, 0o600);
});

test("a queue of its own commits durably into a write-ahead log, and accepts a URL", (t) => {
  const file = database(t);
  const settings = [];
  const exec = Database.prototype.exec;
  t.mock.method(Database.prototype, "exec", function (sql) {
    settings.push(sql);
    return exec.call(this, sql);
  });
  const queue = new Queue(`sqlite:///${file}`);
  queue.enqueue("tag");
  assert.ok(settings.includes("PRAGMA synchronous = FULL"));
  assert.equal(connection(t, file).pragma("journal_mode", { simple: true }), "wal");
  queue.close();
});

test("a unique key gives the job that is there until it has finished", (t) => {
  const queue = new Queue(connection(t));
  const first = queue.put("tag", {}, { uniqueKey: "cat" });
  assert.equal(first.isNew, true);
  assert.deepEqual(queue.put("tag", { other: 1 }, { uniqueKey: "cat" }), { id: first.id, isNew: false });
  assert.equal(queue.put("other", {}, { uniqueKey: "cat" }).isNew, true);
  assert.equal(queue.cancel(first.id), "cancelled");
  assert.equal(queue.put("tag", {}, { uniqueKey: "cat" }).isNew, true);
});

test("many jobs are enqueued together, with options of their own", (t) => {
  const db = connection(t);
  const queue = new Queue(db);
  const ids = queue.enqueueMany("tag", ["a", "b", "a"], (path) => ({ uniqueKey: path, priority: 1 }));
  assert.equal(ids[0], ids[2]);
  assert.deepEqual(ids.map((id) => queue.job(id).payload), ["a", "b", "a"]);
  assert.deepEqual(queue.enqueueMany("tag", []), []);
  db.exec("CREATE TRIGGER no BEFORE INSERT ON jobs WHEN NEW.payload = '3' BEGIN SELECT RAISE(ABORT, 'no 3'); END");
  assert.throws(() => queue.enqueueMany("tag", [1, 2, 3]), /no 3/);
  for (const wrong of [[1, NaN], "cat.jpg", {}, 5, null]) assert.throws(() => queue.enqueueMany("tag", wrong), InvalidJob);
  assert.equal(jobsIn(db.name).length, 2);
});

test("ids, payloads and jobs are the same when the application reads integers as bigints", (t) => {
  const db = connection(t);
  db.defaultSafeIntegers(true);
  const queue = new Queue(db);
  const { id, isNew } = queue.put("tag", { n: 1 }, { uniqueKey: "a", maxAttempts: 3 });
  assert.equal(queue.enqueue("tag", {}, { uniqueKey: "a" }), id);
  const job = queue.job(id);
  assert.deepEqual([isNew, job.id, job.priority, job.maxAttempts, job.attempts], [true, 1, 0, 3, 0]);
});

test("cancelling says what it did", (t) => {
  const db = connection(t);
  const queue = new Queue(db);
  const id = queue.enqueue("tag");
  assert.equal(queue.cancel(id), "cancelled");
  assert.throws(() => queue.cancel(id), Conflict);
  assert.throws(() => queue.cancel(99), JobNotFound);
  const running = queue.enqueue("tag");
  db.prepare("UPDATE jobs SET status = 'running' WHERE id = ?").run(running);
  assert.equal(queue.cancel(running), "running");
  assert.ok(queue.job(running).cancelRequestedAt instanceof Date);
});

test("wrong ids, wrong databases and missing tables are told in one sentence", (t) => {
  const db = connection(t);
  assert.throws(() => new Queue(db).job("1"), TypeError);
  assert.throws(() => new Queue(db).job(99), JobNotFound);
  for (const wrong of [{}, null, 5, { prepare() {}, exec() {} }]) assert.throws(() => new Queue(wrong), /must be a path/);
  const file = database(t);
  assert.throws(() => new Queue(file, { create: false }).enqueue("tag"), /the database does not exist/);
  assert.equal(fs.existsSync(file), false);
  assert.throws(() => new Queue(`${folder(t)}/no/app.db`).enqueue("tag"), StoreError);
  assert.throws(() => new Queue(connection(t), { create: false }).enqueue("tag"), /job tables are missing/);
});

test("tables of another program, of an older and of a newer one are refused", (t) => {
  const foreign = connection(t);
  foreign.exec("CREATE TABLE jobs (id INTEGER PRIMARY KEY)");
  assert.throws(() => new Queue(foreign).enqueue("tag"), /of another program/);
  for (const [key, value, message] of [
    ["schema", "0.5", /older than \d+: run `supervisor migrate`/],
    ["oldest_writer", "1000", /upgrade it/],
  ]) {
    const db = connection(t);
    new Queue(db).createTables();
    db.prepare("UPDATE job_meta SET value = ? WHERE key = ?").run(value, key);
    assert.throws(() => new Queue(db).enqueue("tag"), message);
  }
});

test("a file that was replaced is opened anew, and one that is gone is not made again", (t) => {
  const file = database(t);
  const queue = new Queue(file);
  t.after(() => queue.close());
  queue.enqueue("old");
  const copy = `${file}.copy`;
  const other = new Queue(copy);
  other.createTables();
  other.close();
  fs.renameSync(copy, file);
  for (const end of ["-wal", "-shm"]) fs.rmSync(file + end, { force: true });
  queue.enqueue("new");
  assert.deepEqual(jobsIn(file), [{ id: 1, type: "new" }]);
  fs.unlinkSync(file);
  assert.throws(() => queue.enqueue("lost"), /removed or moved away/);
  assert.equal(fs.existsSync(file), false);
});

test("processes that open new files at the same time all enqueue", async (t) => {
  const file = database(t);
  const code = `
    console.log("ready");
    process.stdin.once("data", () => {
      for (let n = 0; n < 30; n++) {
        const queue = new Queue(file + n);
        queue.enqueue("tag");
        queue.close();
      }
      process.exit();
    });`;
  const programs = [1, 2, 3].map(() => program(t, file, code));
  await Promise.all(programs.map(({ says }) => says("ready")));
  for (const { child } of programs) child.stdin.write("go\n");
  const ended = await Promise.all(programs.map(({ ended }) => ended));
  assert.deepEqual(ended.map(({ code }) => code), [0, 0, 0]);
  for (let n = 0; n < 30; n++) assert.equal(jobsIn(file + n).length, 3);
});

test("opening a database waits for a program that uses it without a write-ahead log", async (t) => {
  const file = database(t);
  connection(t, file).exec("CREATE TABLE pictures (path TEXT)");
  const other = program(t, file, `
    const db = new Database(file);
    db.exec("BEGIN IMMEDIATE");
    console.log("writing");
    setTimeout(() => db.exec("COMMIT"), 300);`);
  await other.says("writing");
  const queue = new Queue(file, { timeout: "30s" });
  assert.equal(queue.enqueue("tag"), 1);
  queue.close();
});

test("names can be imported by ES modules", async () => {
  assert.equal((await import("job-supervisor")).Queue, Queue);
  assert.equal(typeof (await import("job-supervisor/handler")).serve, "function");
});
