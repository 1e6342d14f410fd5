"use strict";
const { spawn } = require("node:child_process");
const { once } = require("node:events");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const Database = require("better-sqlite3");

/** A folder that is removed after the test. */
function folder(t) {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), "job-supervisor-"));
  t.after(() => fs.rmSync(made, { recursive: true, force: true }));
  return made;
}

/** The path of a database that does not exist yet. */
function database(t) {
  return path.join(folder(t), "app.db");
}

/** An application's connection, closed after the test. */
function connection(t, file = database(t), options = {}) {
  const db = new Database(file, options);
  t.after(() => db.close());
  return db;
}

/** What a look at the file shows: ids and types of all jobs. */
function jobsIn(file) {
  const db = new Database(file, { readonly: true });
  try {
    return db.prepare("SELECT id, type FROM jobs ORDER BY id").all();
  } finally {
    db.close();
  }
}

/** Another process that runs `code`, in which `file` and `Queue` are known; `says(text)` waits for its output. */
function program(t, file, code) {
  const preamble = 'const Database = require("better-sqlite3"); const { Queue } = require("job-supervisor");';
  const source = `${preamble} const file = ${JSON.stringify(file)}; ${code}`;
  const child = spawn(process.execPath, ["-e", source], {
    cwd: path.dirname(__dirname),
    stdio: ["pipe", "pipe", "inherit"],
  });
  t.after(() => child.kill("SIGKILL"));
  let output = "";
  child.stdout.setEncoding("utf8");
  child.stdout.on("data", (text) => (output += text));
  const says = async (text) => {
    while (!output.includes(text)) await once(child.stdout, "data");
  };
  const ended = once(child, "close").then(([code]) => ({ code, output }));
  return { child, says, ended };
}

module.exports = { connection, database, folder, jobsIn, program };
