"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { Queue } = require("..");
const { connection, database, jobsIn, program } = require("./kit.js");

function application(t, file) {
  const db = connection(t, file);
  db.exec("CREATE TABLE IF NOT EXISTS pictures (path TEXT)");
  return { db, queue: new Queue(db) };
}

test("a job is committed with the application's own rows, or not at all", (t) => {
  const { db, queue } = application(t);
  queue.createTables();
  const upload = db.transaction((path, fails) => {
    db.prepare("INSERT INTO pictures VALUES (?)").run(path);
    queue.enqueue("tag", { path });
    queue.enqueueMany("size", [1, 2]);
    if (fails) throw new Error("no");
  });
  assert.throws(() => upload("cat.jpg", true), /no/);
  assert.deepEqual([db.prepare("SELECT * FROM pictures").all(), jobsIn(db.name)], [[], []]);
  upload("cat.jpg", false);
  assert.deepEqual(jobsIn(db.name).map((job) => job.type), ["tag", "size", "size"]);
});

test("a job that is refused leaves the transaction as it was", (t) => {
  const { db, queue } = application(t);
  queue.createTables();
  db.exec("CREATE TRIGGER no BEFORE INSERT ON jobs WHEN NEW.payload = '3' BEGIN SELECT RAISE(ABORT, 'no 3'); END");
  db.transaction(() => {
    db.prepare("INSERT INTO pictures VALUES ('cat.jpg')").run();
    assert.throws(() => queue.enqueueMany("tag", [1, 2, 3]), /no 3/);
    queue.enqueue("after");
  })();
  assert.deepEqual(jobsIn(db.name).map((job) => job.type), ["after"]);
  assert.equal(db.prepare("SELECT count(*) AS n FROM pictures").get().n, 1);
});

test("tables made in a transaction that is rolled back are made again", (t) => {
  const { db, queue } = application(t);
  const fail = db.transaction(() => {
    queue.enqueue("one");
    queue.enqueue("two");
    throw new Error("no");
  });
  assert.throws(fail, /no/);
  assert.throws(() => jobsIn(db.name), /no such table/);
  queue.enqueue("three");
  assert.deepEqual(jobsIn(db.name), [{ id: 1, type: "three" }]);
});

test("two processes with the same unique key make one job", async (t) => {
  const file = database(t);
  new Queue(connection(t, file)).createTables();
  const code = `
    const db = new Database(file);
    const queue = new Queue(db);
    console.log("ready");
    process.stdin.once("data", () => {
      const put = [];
      for (let n = 0; n < 200; n++) put.push(queue.put("tag", {}, { uniqueKey: String(n) }));
      console.log(JSON.stringify(put));
      process.stdin.destroy();
    });`;
  const pair = [program(t, file, code), program(t, file, code)];
  await Promise.all(pair.map(({ says }) => says("ready\n")));
  for (const { child } of pair) child.stdin.write("go\n");
  const [one, two] = (await Promise.all(pair.map(({ ended }) => ended))).map(({ output }) =>
    JSON.parse(output.replace("ready\n", "")),
  );
  assert.equal(jobsIn(file).length, 200);
  assert.deepEqual(one.map(({ id }) => id), two.map(({ id }) => id));
  for (let n = 0; n < 200; n++) assert.equal(one[n].isNew, !two[n].isNew);
});

test("kill -9 in the middle of a transaction leaves nothing of it, and after the commit all of it", async (t) => {
  const file = database(t);
  new Queue(connection(t, file)).createTables();
  for (const [commit, left] of [["", []], ['db.exec("COMMIT");', ["tag", "size", "size"]]]) {
    const code = `
      const db = new Database(file);
      const queue = new Queue(db);
      db.exec("BEGIN");
      queue.enqueue("tag", {}, { uniqueKey: "a" });
      queue.enqueueMany("size", [1, 2]);
      ${commit}
      console.log("there");
      setInterval(() => {}, 1000);`;
    const { child, says, ended } = program(t, file, code);
    await says("there");
    child.kill("SIGKILL");
    await ended;
    assert.deepEqual(jobsIn(file).map((job) => job.type), left);
  }
});
