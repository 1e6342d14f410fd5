"use strict";
const { JobNotFound, StoreError, WaitTimeout } = require("./errors.js");
const { queries } = require("./definitions.json");
const { impatiently, isBusy, prepared } = require("./connection.js");

const SHORTEST = 2; // milliseconds between two looks, while a job has just been waited for
const LONGEST = 50;

/** Those who wait for jobs of one queue. One timer looks for all of them, and only when something was committed. */
class Waiting {
  #get; // () => the connection
  #jobs = new Map(); // id → those who wait
  #timer = null;
  #pause = SHORTEST;
  #seen = "";

  constructor(get) {
    this.#get = get;
  }

  /** Resolves when the job has finished. `timeout` is in milliseconds. */
  finished(id, timeout, signal) {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      if (this.#look(id)) return resolve();
      const end = (settle, value) => {
        clearTimeout(limit);
        signal?.removeEventListener("abort", aborted);
        this.#forget(id, one);
        settle(value);
      };
      const one = { resolve: () => end(resolve), reject: (error) => end(reject, error) };
      const aborted = () => one.reject(signal.reason);
      const limit = timeout === undefined ? undefined : after(timeout, () => one.reject(new WaitTimeout(id, timeout)));
      signal?.addEventListener("abort", aborted);
      this.#jobs.set(id, (this.#jobs.get(id) ?? new Set()).add(one));
      this.#pause = SHORTEST;
      this.#seen = "";
      clearTimeout(this.#timer);
      this.#wind();
    });
  }

  close() {
    this.#rejectAll(new StoreError("the queue was closed"));
  }

  #wind() {
    this.#timer = setTimeout(() => this.#tick(), this.#pause);
    this.#pause = Math.min(this.#pause * 1.3, LONGEST);
  }

  #tick() {
    try {
      impatiently(this.#get(), () => {
        const version = this.#version();
        if (version !== this.#seen) this.#lookAll();
        this.#seen = version;
      });
    } catch (error) {
      if (!isBusy(error)) this.#rejectAll(error);
    }
    if (this.#jobs.size > 0) this.#wind();
  }

  /** Changes with every commit of any connection, this one included. Costs microseconds. */
  #version() {
    const db = this.#get();
    const { data_version: others } = prepared(db, "PRAGMA data_version").get();
    const { own } = prepared(db, "SELECT total_changes() AS own").get();
    return `${others} ${own}`;
  }

  #lookAll() {
    for (const [id, waiters] of [...this.#jobs]) {
      try {
        if (this.#look(id)) for (const one of [...waiters]) one.resolve();
      } catch (error) {
        if (!(error instanceof JobNotFound)) throw error;
        for (const one of [...waiters]) one.reject(error);
      }
    }
  }

  #look(id) {
    const row = prepared(this.#get(), queries.job_status).get({ id });
    if (row === undefined) throw new JobNotFound(id);
    return !["pending", "held", "running"].includes(row.status);
  }

  #forget(id, one) {
    const waiters = this.#jobs.get(id);
    waiters?.delete(one);
    if (waiters?.size === 0) this.#jobs.delete(id);
    if (this.#jobs.size === 0) clearTimeout(this.#timer);
  }

  #rejectAll(error) {
    for (const waiters of [...this.#jobs.values()]) for (const one of [...waiters]) one.reject(error);
  }
}

/** A timer for any time: those of Node.js fire at once beyond 24 days. */
function after(milliseconds, act) {
  return milliseconds < 2 ** 31 ? setTimeout(act, milliseconds) : undefined;
}

module.exports = { Waiting };
