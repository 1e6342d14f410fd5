// The handler of the pool: one of these programs runs for each worker, and gets one job after the other.
const { setTimeout: sleep } = require("node:timers/promises");
const { serve, Fail } = require("job-supervisor/handler");

serve(async (payload, ctx) => {
  if (typeof payload.text !== "string") throw new Fail("the payload has no text");
  ctx.progress(0.5, "thinking");
  console.log("making a slug of", payload.text.length, "characters"); // goes to the worker's log
  const plain = payload.text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const words = plain.match(/[a-z0-9]+/g) ?? [];
  await sleep(payload.wait ?? 0, undefined, { signal: ctx.signal }).catch(() => {}); // ends early when cancelled
  return { slug: words.join("-"), cancelled: ctx.cancelled };
});
