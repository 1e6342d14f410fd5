"use strict";
const assert = require("node:assert/strict");
const { test } = require("node:test");
const { newJob } = require("../intake.js");
const { InvalidJob } = require("../queue.js");

function refused(field, ...words) {
  assert.throws(() => newJob(...words), (error) => error instanceof InvalidJob && error.field === field, field);
}

test("what JSON cannot hold is refused, and nothing is silently changed into null", () => {
  const circular = {};
  circular.self = circular;
  const bad = [
    NaN, { a: Infinity }, [undefined], () => 1, Symbol("a"), 10n, new Map(), new Set(), Promise.resolve(), /a/,
    new Uint8Array(1), new Error("no"), circular, "\ud800", { "\udc00": 1 }, { toJSON() {} },
    { toJSON() { throw new Error("no"); } },
  ];
  for (const payload of bad) refused("payload", "tag", payload);
});

test("a property that is undefined is left out, and a Date is its text, as always in JSON.stringify", () => {
  assert.equal(newJob("tag", { a: undefined, at: new Date(0) }).payload, '{"at":"1970-01-01T00:00:00.000Z"}');
  assert.equal(newJob("tag").payload, "{}");
  assert.equal(newJob("tag", "é\u2028").payload, '"é\u2028"');
});

test("brackets inside texts are no levels", () => {
  const text = `${"[".repeat(100)}\\"${"{".repeat(100)}${"x".repeat(500_000)}`;
  assert.deepEqual(JSON.parse(newJob("tag", [text]).payload), [text]);
});

test("numbers are milliseconds, texts have a unit", () => {
  for (const [delay, seconds] of [[1500, 1.5], ["250ms", 0.25], [" 2h ", 7200], ["1.5m", 90], [0, 0]]) {
    const job = newJob("tag", {}, { delay });
    assert.ok(Math.abs(job.scheduled_at - job.now - seconds) < 1e-3, String(delay));
  }
  for (const delay of ["10", "10 s", "-1s", -1, NaN, Infinity, true, {}, "", 1e300]) refused("delay", "tag", {}, { delay });
});

test("a time is a Date", () => {
  assert.equal(newJob("tag", {}, { at: new Date(5000) }).scheduled_at, 5);
  for (const at of [5, "2027-01-01", new Date(NaN), new Date(-1)]) refused("at", "tag", {}, { at });
  refused("delay", "tag", {}, { at: new Date(), delay: 1 });
});

test("a mistyped option is named", () => {
  refused("unique_key", "tag", {}, { unique_key: "a" });
  refused("options", "tag", {}, "10s");
});
