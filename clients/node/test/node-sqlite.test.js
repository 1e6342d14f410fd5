"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { Queue } = require("..");
const { database, jobsIn } = require("./kit.js");

let driver;
try {
  driver = require("node:sqlite");
} catch {
  // Older than 22.5.
}
const there = driver !== undefined && "isTransaction" in new driver.DatabaseSync(":memory:");

test("a connection of node:sqlite does the same", { skip: !there && "no such node:sqlite here" }, async (t) => {
  const file = database(t);
  const db = new driver.DatabaseSync(file, { timeout: 100 });
  t.after(() => db.close());
  const queue = new Queue(db);
  const first = queue.put("tag", { a: 1 }, { uniqueKey: "x", meta: { a: 1 } });
  assert.deepEqual(queue.put("tag", {}, { uniqueKey: "x" }), { id: first.id, isNew: false });
  db.exec("BEGIN");
  queue.enqueue("lost");
  queue.enqueueMany("lost", [1, 2]);
  db.exec("ROLLBACK");
  queue.enqueueMany("many", [1, 2]);
  assert.deepEqual(jobsIn(file).map(({ type }) => type), ["tag", "many", "many"]);
  const waiting = queue.wait(first.id, { timeout: "30s" });
  assert.equal(queue.cancel(first.id), "cancelled");
  assert.deepEqual((await waiting).meta, { a: 1 });
  const other = new driver.DatabaseSync(file);
  other.exec("BEGIN IMMEDIATE");
  await assert.rejects(queue.withoutBlocking(() => queue.enqueue("tag"), { timeout: 20 }), /locked/);
  other.close();
});
