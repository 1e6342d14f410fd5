// What the queue needs of a synchronous SQLite driver: better-sqlite3, or node:sqlite of newer versions of Node.js.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const { createRequire } = require("node:module");
const { StoreError } = require("./errors.js");

const statements = new WeakMap(); // connection → text → prepared statement

/** A connection that the application has handed in. Its settings and its transactions are the application's. */
class Handed {
  constructor(db) {
    if (typeof db?.prepare !== "function" || typeof inTransaction(db) !== "boolean") {
      throw new TypeError("the database must be a path, or a connection of better-sqlite3 or node:sqlite");
    }
    this.db = db;
  }

  get() {
    return this.db;
  }

  close() {}
}

/** A connection of our own, opened on first use, and again when another file has got the database's name. */
class Own {
  #create;
  #timeout;
  #db = null;
  #file = null;

  constructor(file, { create, timeout }) {
    this.path = path.resolve(file.replace(/^sqlite:\/\/\//, ""));
    this.#create = create;
    this.#timeout = timeout;
  }

  get() {
    if (this.#db !== null) {
      const file = identity(this.path);
      if (file === this.#file) return this.#db;
      if (file === null) throw new StoreError(`${this.path}: the file has been removed or moved away while in use`);
      this.close();
    } else if (this.#create) {
      makePrivate(this.path);
    }
    if (identity(this.path) === null) throw new StoreError(`${this.path}: the database does not exist`);
    const Database = driver();
    this.#db = new Database(this.path, { timeout: this.#timeout, fileMustExist: true });
    this.#create = false; // a file that is removed later may come back: no new one takes its place
    this.#file = identity(this.path);
    useWal(this.#db, this.#timeout);
    this.#db.exec("PRAGMA synchronous = FULL"); // what enqueue has returned survives a power cut
    return this.#db;
  }

  close() {
    this.#db?.close();
    this.#db = null;
  }
}

function driver() {
  const start = require.main?.filename ?? process.argv[1] ?? path.join(process.cwd(), "-");
  for (const load of [require, createRequire(path.resolve(start))]) {
    try {
      return load("better-sqlite3");
    } catch (error) {
      if (error.code !== "MODULE_NOT_FOUND") throw error;
    }
  }
  throw new StoreError("better-sqlite3 is not installed: npm install better-sqlite3, or hand in a connection");
}

function identity(file) {
  const found = fs.statSync(file, { throwIfNoEntry: false, bigint: true });
  return found === undefined ? null : `${found.dev}:${found.ino}`;
}

/** A new database is readable only by its owner; SQLite gives -wal and -shm the same mode. */
function makePrivate(file) {
  try {
    fs.closeSync(fs.openSync(file, "wx", 0o600));
  } catch (error) {
    if (error.code !== "EEXIST") throw new StoreError(`${file}: cannot be created: ${error.message}`);
  }
}

/** Switch the file to write-ahead logging. SQLite does not wait for others here, so we do. */
function useWal(db, timeout) {
  const end = performance.now() + timeout;
  for (;;) {
    try {
      if (db.prepare("PRAGMA journal_mode = WAL").get().journal_mode === "wal") return;
      throw new StoreError(`${db.name}: write-ahead logging is not possible there`);
    } catch (error) {
      if (!isBusy(error) || performance.now() > end) throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 5);
    }
  }
}

/** The statement of this text, prepared once for each connection. */
function prepared(db, sql) {
  let known = statements.get(db);
  if (known === undefined) statements.set(db, (known = new Map()));
  let statement = known.get(sql);
  if (statement === undefined) known.set(sql, (statement = db.prepare(sql)));
  return statement;
}

/** better-sqlite3 and node:sqlite have different names for it. */
function inTransaction(db) {
  return db.inTransaction ?? db.isTransaction;
}

/** Run `work` as a whole or not at all: in a transaction of its own, or in a savepoint of the caller's. */
function atomically(db, work) {
  const inside = inTransaction(db);
  db.exec(inside ? "SAVEPOINT job_supervisor" : "BEGIN IMMEDIATE");
  try {
    const value = work();
    db.exec(inside ? "RELEASE job_supervisor" : "COMMIT");
    return value;
  } catch (error) {
    // A full disk, for example, has ended the transaction already.
    if (inTransaction(db)) db.exec(inside ? "ROLLBACK TO job_supervisor; RELEASE job_supervisor" : "ROLLBACK");
    throw error;
  }
}

/** Run `work` without SQLite's own waiting, which stops the event loop. */
function impatiently(db, work) {
  const { timeout } = prepared(db, "PRAGMA busy_timeout").get();
  db.exec("PRAGMA busy_timeout = 0");
  try {
    return work();
  } finally {
    db.exec(`PRAGMA busy_timeout = ${timeout}`);
  }
}

/** Whether the same may succeed later: another program writes, or the application iterates over rows. */
function isBusy(error) {
  return (
    String(error?.code).startsWith("SQLITE_BUSY") ||
    (error?.errcode & 255) === 5 || // node:sqlite
    (error instanceof TypeError && error.message.includes("connection is busy"))
  );
}

module.exports = { Handed, Own, atomically, impatiently, inTransaction, isBusy, prepared };
