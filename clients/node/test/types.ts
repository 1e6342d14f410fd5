// Compiled by `npm test`, never run: what an application in TypeScript writes, and the mistakes that it is told.
import Database from "better-sqlite3";
import { InvalidJob, Queue, type Job } from "job-supervisor";
import { Fail, Retry, serve, type Context } from "job-supervisor/handler";

const db = new Database("app.db");
const plain = new Queue(db);
const id: number = plain.enqueue("anything", { any: 1 }, { delay: "10s", uniqueKey: "a", requires: ["gpu"] });
const many: number[] = plain.enqueueMany("anything", [1, 2], (payload, index) => ({ uniqueKey: `${payload} ${index}` }));
const put: { id: number; isNew: boolean } = plain.put("anything", {}, { at: new Date(), meta: { trace: "x" } });

interface Jobs {
  resize: { path: string; width?: number };
  mail: { to: string };
}
const typed = new Queue<Jobs>("app.db", { timeout: 2000 });
typed.enqueue("resize", { path: "cat.jpg" });
const job: Promise<Job<Jobs["resize"]>> = typed.wait<"resize">(id, { timeout: "30s", signal: AbortSignal.timeout(5) });
const answer: Promise<number> = typed.withoutBlocking(() => typed.enqueue("mail", { to: "ada" }));
const state: "cancelled" | "running" = typed.cancel(id);

// @ts-expect-error no such type
typed.enqueue("resise", { path: "cat.jpg" });
// @ts-expect-error a payload of another type
typed.enqueue("mail", { path: "cat.jpg" });
// @ts-expect-error not a duration
plain.enqueue("mail", {}, { delay: "10 seconds" });
// @ts-expect-error not an option
plain.enqueue("mail", {}, { unique_key: "a" });
// @ts-expect-error not a connection
new Queue({ query: () => 1 });

class Resizer {
  setup(ctx: Context<{ quality: number }>) {
    ctx.log.info("loading", { quality: ctx.options.quality });
  }
  async handle(payload: { path: string }, ctx: Context) {
    if (!payload.path) throw new Fail("no path");
    ctx.progress(0.5);
    ctx.enqueue("mail", { to: "ada" }, { delay: 1000 });
    if (ctx.attempt < 2) throw new Retry("busy", { after: "30s" });
    return { field: new InvalidJob("path", "no").field, job, answer, state, many, put };
  }
}
serve(Resizer, { capabilities: ["gpu"] });
serve(async (payload: { text: string }) => payload.text.length);
