// A handler in Node.js: what it needs of the protocol is in job-handler.js, beside it.
const { serve, Fail } = require("./job-handler.js");

serve(async (payload, job) => {
  if (typeof payload.text !== "string") throw new Fail("the payload has no text");
  job.progress(0.5, "thinking");
  console.log("making a slug of", payload.text.length, "characters"); // goes to the worker's log
  const plain = payload.text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const words = plain.match(/[a-z0-9]+/g) ?? [];
  for (let waited = 0; waited < (payload.wait ?? 0) && !job.cancelled; waited += 10) {
    await new Promise((wake) => setTimeout(wake, 10));
  }
  return { slug: words.join("-"), cancelled: job.cancelled };
});
