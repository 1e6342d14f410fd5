"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { setTimeout: sleep } = require("node:timers/promises");
const { JobNotFound, Queue, StoreError, WaitTimeout } = require("..");
const { connection, database, program } = require("./kit.js");

const finish = (db, id) =>
  db.prepare("UPDATE jobs SET status = 'done', result = '{\"n\":1}' WHERE id = ?").run(id);

test("wait resolves when another connection finishes the job", async (t) => {
  const file = database(t);
  const queue = new Queue(file);
  t.after(() => queue.close());
  const id = queue.enqueue("tag");
  const both = Promise.all([queue.wait(id), queue.wait(id)]);
  await sleep(20);
  finish(connection(t, file), id);
  const [one, two] = await both;
  assert.deepEqual([one.status, one.result], ["done", { n: 1 }]);
  assert.deepEqual(one, two);
  assert.equal((await queue.wait(id)).status, "done");
});

test("wait resolves when its own connection finishes the job", async (t) => {
  const db = connection(t);
  const queue = new Queue(db);
  const [one, two] = [queue.enqueue("tag"), queue.enqueue("tag")];
  const both = Promise.all([queue.wait(one), queue.wait(two)]);
  await sleep(20);
  finish(db, one);
  queue.cancel(two);
  assert.deepEqual((await both).map((job) => job.status), ["done", "cancelled"]);
});

test("wait ends with its time, its signal, its queue, and its job", async (t) => {
  const db = connection(t);
  const queue = new Queue(db);
  const id = queue.enqueue("tag");
  await assert.rejects(queue.wait(id, { timeout: "20ms" }), WaitTimeout);
  await assert.rejects(queue.wait(id, { timeout: 0 }), WaitTimeout);
  await assert.rejects(queue.wait(id, { timeout: "soon" }), /timeout: "soon" is not a duration/);
  const reason = new Error("enough");
  await assert.rejects(queue.wait(id, { signal: AbortSignal.abort(reason) }), reason);
  const abort = new AbortController();
  const aborted = assert.rejects(queue.wait(id, { signal: abort.signal }), reason);
  abort.abort(reason);
  await aborted;
  await assert.rejects(queue.wait(99), JobNotFound);
  const deleted = assert.rejects(queue.wait(id), JobNotFound);
  db.prepare("DELETE FROM jobs WHERE id = ?").run(id);
  await deleted;
  const closed = assert.rejects(queue.wait(queue.enqueue("tag")), StoreError);
  queue.close();
  await closed;
});

test("a thousand who wait are served by one timer, which leaves the process when none is left", async (t) => {
  const file = database(t);
  const code = `
    const queue = new Queue(file);
    const ids = queue.enqueueMany("tag", Array(1000).fill({}));
    const waits = Promise.all(ids.map((id) => queue.wait(id)));
    const real = setTimeout;
    let timers = 0;
    globalThis.setTimeout = (...words) => (timers++, real(...words));
    real(() => new Database(file).exec("UPDATE jobs SET status = 'done'"), 100);
    waits.then((jobs) => console.log(jobs.length, timers < 1000));`;
  const { code: ended, output } = await program(t, file, code).ended;
  assert.deepEqual([ended, output], [0, "1000 true\n"]);
});

test("withoutBlocking leaves the event loop free while another program writes", async (t) => {
  const file = database(t);
  const queue = new Queue(file, { timeout: "30s" });
  t.after(() => queue.close());
  queue.createTables();
  const other = program(t, file, `
    const db = new Database(file);
    db.exec("BEGIN IMMEDIATE");
    console.log("writing");
    process.stdin.once("data", () => { db.exec("COMMIT"); process.exit(); });`);
  await other.says("writing");
  let turns = 0;
  const clock = setInterval(() => turns++, 1);
  const enqueued = queue.withoutBlocking(() => queue.enqueue("tag"));
  while (turns < 50) await sleep(1); // would never come if SQLite waited
  other.child.stdin.write("end\n");
  assert.equal(queue.job(await enqueued).status, "pending");
  clearInterval(clock);
  assert.equal(await queue.withoutBlocking(() => 5), 5);
});

test("withoutBlocking gives up after its time, passes other errors on, and restores the connection", async (t) => {
  const db = connection(t, undefined, { timeout: 1234 });
  const queue = new Queue(db, { timeout: "30s" });
  queue.createTables();
  const other = connection(t, db.name);
  other.exec("BEGIN IMMEDIATE");
  const work = () => queue.enqueue("tag");
  await assert.rejects(queue.withoutBlocking(work, { timeout: 20 }), { code: "SQLITE_BUSY" });
  await assert.rejects(queue.withoutBlocking(work, { signal: AbortSignal.timeout(20) }));
  other.exec("COMMIT");
  await assert.rejects(queue.withoutBlocking(() => queue.enqueue("no no")), /is not a valid type/);
  await assert.rejects(queue.withoutBlocking(async () => 1), /must not be async/);
  assert.equal(db.pragma("busy_timeout", { simple: true }), 1234);
});
