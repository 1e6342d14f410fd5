// A web application: upload a text, get a job, ask for its result. Only node:http, as in any framework.
const http = require("node:http");
const { text: textOf } = require("node:stream/consumers");
const Database = require("better-sqlite3");
const { InvalidJob, JobNotFound, Queue, WaitTimeout } = require("job-supervisor");

const db = new Database("jobs.db");
db.pragma("journal_mode = WAL");
db.pragma("synchronous = FULL"); // what was answered with 202 survives a power cut
db.exec("CREATE TABLE IF NOT EXISTS texts (id INTEGER PRIMARY KEY, text TEXT NOT NULL, job INTEGER NOT NULL)");
const queue = new Queue(db);
queue.createTables();

// The text and its job: both are there, or neither is.
const keep = db.transaction((text) => {
  const job = queue.enqueue("slug", { text });
  db.prepare("INSERT INTO texts (text, job) VALUES (?, ?)").run(text, job);
  return job;
});

async function upload(request) {
  const text = await textOf(request);
  const job = await queue.withoutBlocking(() => keep(text));
  return [202, { job, status: `/jobs/${job}`, result: `/jobs/${job}/result` }];
}

function status(request, id) {
  const job = queue.job(id);
  return [200, { status: job.status, progress: job.progress, doing: job.progressText, error: job.lastError }];
}

/** Answers when the job has finished, and after 20 seconds in any case; then the client asks again. */
async function result(request, id, signal) {
  const job = await queue.wait(id, { timeout: "20s", signal });
  return job.status === "done" ? [200, job.result] : [409, { status: job.status, error: job.lastError }];
}

function cancel(request, id) {
  return [200, { status: queue.cancel(id) }];
}

const routes = [
  ["POST", /^\/texts$/, upload],
  ["GET", /^\/jobs\/(\d{1,15})$/, status],
  ["GET", /^\/jobs\/(\d{1,15})\/result$/, result],
  ["DELETE", /^\/jobs\/(\d{1,15})$/, cancel],
];

async function answer(request, signal) {
  for (const [method, path, route] of routes) {
    const match = request.method === method && path.exec(request.url);
    if (match) return route(request, Number(match[1]), signal);
  }
  return [404, { error: "there is no such page" }];
}

const codes = new Map([[InvalidJob, 400], [JobNotFound, 404], [WaitTimeout, 504]]);

const server = http.createServer(async (request, response) => {
  const left = new AbortController();
  response.on("close", () => left.abort()); // nobody waits for this any more
  let [code, body] = [500, { error: "something went wrong" }];
  try {
    [code, body] = await answer(request, left.signal);
  } catch (error) {
    if (left.signal.aborted) return;
    if (codes.has(error.constructor)) [code, body] = [codes.get(error.constructor), { error: error.message }];
    else console.error(error);
  }
  response.writeHead(code, { "content-type": "application/json" }).end(`${JSON.stringify(body)}\n`);
});

server.listen(Number(process.env.PORT ?? 3000), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
