"use strict";
const { setTimeout: sleep } = require("node:timers/promises");
const errors = require("./errors.js");
const { Handed, Own, atomically, impatiently, inTransaction, isBusy, prepared } = require("./connection.js");
const { create: creation, queries, schema: NEWEST } = require("./definitions.json");
const { milliseconds, newJob } = require("./intake.js");
const { Waiting } = require("./waiting.js");

const { Conflict, InvalidJob, JobNotFound, StoreError } = errors;

/** The queue of one database. See queue.d.ts for each method, and docs/node.md. */
class Queue {
  #connection;
  #create;
  #timeout;
  #current = null; // the connection whose tables are known to be there
  #waiting = new Waiting(() => this.#open());

  constructor(database, { create = true, timeout = 5000 } = {}) {
    this.#create = create;
    this.#timeout = milliseconds("timeout", timeout);
    const own = { create, timeout: Math.min(Math.round(this.#timeout), 2 ** 31 - 1) };
    this.#connection = typeof database === "string" ? new Own(database, own) : new Handed(database);
  }

  enqueue(type, payload, options) {
    return this.put(type, payload, options).id;
  }

  put(type, payload, options) {
    const job = newJob(type, payload, options);
    return insert(this.#open(), job);
  }

  enqueueMany(type, payloads, options) {
    if (typeof payloads === "string" || typeof payloads?.[Symbol.iterator] !== "function") {
      throw new InvalidJob("payloads", "they are not a list");
    }
    const jobs = Array.from(payloads, (payload, index) =>
      newJob(type, payload, typeof options === "function" ? options(payload, index) : options),
    );
    if (jobs.length === 0) return [];
    const db = this.#open();
    return atomically(db, () => jobs.map((job) => insert(db, job).id));
  }

  job(id) {
    const row = prepared(this.#open(), queries.job).get({ id: checked(id) });
    if (row === undefined) throw new JobNotFound(id);
    return jobOf(row);
  }

  async wait(id, { timeout, signal } = {}) {
    const limit = timeout === undefined ? undefined : milliseconds("timeout", timeout);
    await this.#waiting.finished(checked(id), limit, signal);
    return this.job(id);
  }

  cancel(id) {
    const db = this.#open();
    const now = Date.now() / 1000;
    return atomically(db, () => {
      const changed = (query) => prepared(db, query).all({ ids: JSON.stringify([checked(id)]), now }).length > 0;
      if (changed(queries.cancel_pending)) return "cancelled";
      if (changed(queries.request_cancel)) return "running";
      const row = prepared(db, queries.job_status).get({ id });
      if (row === undefined) throw new JobNotFound(id);
      throw new Conflict(`job ${id} is ${row.status}; only a pending or running job can be cancelled`);
    });
  }

  createTables() {
    this.#prepare(this.#connection.get(), true);
  }

  async withoutBlocking(work, { timeout = this.#timeout, signal } = {}) {
    const end = performance.now() + milliseconds("timeout", timeout);
    for (let pause = 1; ; pause = Math.min(pause * 2, 20)) {
      signal?.throwIfAborted();
      try {
        const value = impatiently(this.#connection.get(), work);
        if (typeof value?.then === "function") throw new TypeError("the function must not be async: SQLite is not");
        return value;
      } catch (error) {
        if (!isBusy(error) || performance.now() >= end) throw error;
      }
      await sleep(pause * (0.5 + Math.random()), undefined, { signal });
    }
  }

  close() {
    this.#waiting.close();
    this.#connection.close();
    this.#current = null;
  }

  /** The connection, whose tables are there. */
  #open() {
    const db = this.#connection.get();
    if (db !== this.#current) this.#prepare(db, this.#create);
    return db;
  }

  #prepare(db, create) {
    const inside = inTransaction(db); // tables that are made there go if it is rolled back
    if (!areThere(db)) {
      if (!create) throw new StoreError("the job tables are missing: call createTables(), or run `supervisor migrate`");
      atomically(db, () => {
        if (!areThere(db)) for (const statement of creation) db.exec(statement);
      });
    }
    if (!inside) this.#current = db;
  }
}

/** Whether the tables are there. Throws StoreError for tables that are not ours, too old or too new. */
function areThere(db) {
  const names = new Set(db.prepare(queries.tables).all().map((row) => row.name));
  if (!names.has("job_meta") && !names.has("jobs")) return false;
  const meta = (key) => (names.has("job_meta") ? Number(db.prepare(queries.meta).get({ key })?.value ?? 0) : 0);
  const version = meta("schema");
  if (version === 0) {
    if (!names.has("job_meta")) throw new StoreError("the database has a `jobs` table of another program; see `supervisor adopt`");
    throw new StoreError("the job tables are from before the first release: `supervisor migrate` says what to do");
  }
  if (version < NEWEST) {
    throw new StoreError(`the job tables have schema ${version}, older than ${NEWEST}: run \`supervisor migrate\``);
  }
  const oldest = meta("oldest_writer");
  if (oldest > NEWEST) {
    const needs = `which programs before schema ${oldest} must not write; this package knows ${NEWEST}: upgrade it`;
    throw new StoreError(`the job tables have schema ${version}, ${needs}`);
  }
  return true;
}

function insert(db, { extra, ...job }) {
  const names = Object.keys(extra);
  const sql = queries.insert_job
    .replace("/*columns*/", names.map((name) => `, ${name}`).join(""))
    .replace("/*values*/", names.map((name) => `, :${name}`).join(""));
  for (let attempt = 0; attempt < 3; attempt++) {
    const inserted = prepared(db, sql).run({ ...job, ...extra });
    if (Number(inserted.changes) === 1) return { id: Number(inserted.lastInsertRowid), isNew: true };
    const { type, unique_key } = job;
    const found = unique_key === null ? undefined : prepared(db, queries.find_unique).get({ type, unique_key });
    if (found !== undefined) return { id: Number(found.id), isNew: false };
    // In autocommit, the other job may have finished in between.
  }
  throw new Conflict(`a job of type ${JSON.stringify(job.type)} breaks a UNIQUE rule of the jobs table`);
}

function checked(id) {
  if (!Number.isSafeInteger(id)) throw new TypeError(`the id of a job is a whole number, not ${typeof id} ${id}`);
  return id;
}

function jobOf(row) {
  return {
    id: Number(row.id),
    type: row.type,
    payload: decoded(row.payload),
    status: row.status,
    priority: Number(row.priority),
    requires: row.requires.split(/\s+/).filter(Boolean),
    attempts: Number(row.attempts),
    maxAttempts: row.max_attempts === null ? null : Number(row.max_attempts),
    crashes: Number(row.crashes),
    uniqueKey: row.unique_key,
    progress: row.progress,
    progressText: row.progress_text,
    result: decoded(row.result),
    lastError: row.last_error,
    meta: decoded(row.meta),
    scheduledAt: date(row.scheduled_at),
    startedAt: date(row.started_at),
    completedAt: date(row.completed_at),
    cancelRequestedAt: date(row.cancel_requested_at),
  };
}

/** Stored JSON as a value; what is not JSON as the text itself. */
function decoded(text) {
  try {
    return typeof text === "string" ? JSON.parse(text) : text;
  } catch {
    return text;
  }
}

function date(seconds) {
  return seconds === null ? null : new Date(seconds * 1000);
}

module.exports = { Queue, ...errors };
