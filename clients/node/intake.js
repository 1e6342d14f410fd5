// What may be enqueued: the rules of supervisor/domain/enqueueing.py, with the limits from there.
"use strict";
const { InvalidJob } = require("./errors.js");
const { limits, options: OPTIONS } = require("./definitions.json");

const TYPE = new RegExp(`^${limits.type}$`);
const CAPABILITY = new RegExp(`^${limits.capability}$`);
const DURATION = /^\s*(\d+(?:\.\d+)?)(ms|s|m|h|d)\s*$/;
const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };
const CHECKS = { whole, delay_of: delayOf, moment, capabilities, text_key: textKey, json_object: jsonObject };
const NOT_JSON = [Map, Set, WeakMap, WeakSet, Promise, RegExp, Error, ArrayBuffer];

/** The parameters of the statement that inserts a job. Throws InvalidJob, which names the argument. */
function newJob(type, payload, options = {}) {
  if (typeof type !== "string" || !TYPE.test(type)) {
    throw new InvalidJob("type", `${short(type)} is not a valid type: 1 to 100 characters of a-z A-Z 0-9 _ . : / -`);
  }
  if (typeof options !== "object" || options === null) {
    throw new InvalidJob("options", `${short(options)} is not an object`);
  }
  const now = Date.now() / 1000;
  const job = { type, payload: encode("payload", payload ?? {}), priority: 0, requires: "", scheduled_at: now };
  Object.assign(job, { max_attempts: null, unique_key: null, now, extra: {} });
  const given = new Set();
  for (const [name, value] of Object.entries(options)) {
    if (!Object.hasOwn(OPTIONS, name)) {
      throw new InvalidJob(name, `there is no such option; the options are ${Object.keys(OPTIONS).join(", ")}`);
    }
    const { column, check, limits: bounds } = OPTIONS[name];
    if (value === undefined || (value === null && name !== "priority")) continue;
    if (given.has(column)) {
      const names = Object.keys(OPTIONS).filter((one) => OPTIONS[one].column === column);
      throw new InvalidJob(names[0], `give either ${names.join(" or ")}, not both`);
    }
    given.add(column);
    const stored = CHECKS[check](name, value, ...bounds, now);
    if (stored !== null) (column in job ? job : job.extra)[column] = stored;
  }
  return job;
}

/** JSON text of a payload or a result. Throws InvalidJob for what JSON cannot represent, or is too large. */
function encode(field, value) {
  const text = stringify(field, value);
  const size = Buffer.byteLength(text);
  if (size > limits.payload_bytes) {
    throw new InvalidJob(field, `it has ${size} bytes of JSON; the limit is ${limits.payload_bytes} (1 MiB)`);
  }
  if (depth(text) > limits.depth) throw tooDeep(field);
  return text;
}

function stringify(field, value) {
  const refuse = (problem) => {
    throw new InvalidJob(field, problem);
  };
  function check(key, item) {
    if (!key.isWellFormed()) refuse("it contains a lone surrogate, which UTF-8 cannot encode");
    switch (typeof item) {
      case "string":
        return item.isWellFormed() ? item : refuse("it contains a lone surrogate, which UTF-8 cannot encode");
      case "number":
        return Number.isFinite(item) ? item : refuse(`it is not valid JSON: it contains ${item}`);
      case "undefined": // a property that is undefined is left out, as always in JSON.stringify
        return Array.isArray(this) ? refuse("it is not valid JSON: a list contains undefined") : item;
      case "object":
        if (NOT_JSON.some((kind) => item instanceof kind) || ArrayBuffer.isView(item)) {
          refuse(`it is not valid JSON: it contains a ${item.constructor.name}`);
        }
        return item;
      case "boolean":
        return item;
      default:
        return refuse(`it is not valid JSON: it contains a ${typeof item}`);
    }
  }
  try {
    return JSON.stringify(value, check) ?? refuse("it is not valid JSON: it is undefined");
  } catch (error) {
    if (error instanceof InvalidJob) throw error;
    if (error instanceof RangeError) throw tooDeep(field);
    const circular = error instanceof TypeError && error.message.includes("circular");
    throw new InvalidJob(field, `it is not valid JSON: ${circular ? "it contains itself" : error?.message ?? error}`);
  }
}

function tooDeep(field) {
  return new InvalidJob(field, `it is nested deeper than ${limits.depth} levels`);
}

/** How many brackets of a JSON text are open at once, at most. */
function depth(text) {
  let open = 0;
  let most = 0;
  for (const [token] of text.matchAll(/"(?:[^"\\]+|\\.)*"|[[\]{}]/g)) {
    if (token === "[" || token === "{") most = Math.max(most, ++open);
    else if (token === "]" || token === "}") open--;
  }
  return most;
}

function whole(field, value, low, high) {
  if (!Number.isInteger(value) || value < low || value > high) {
    throw new InvalidJob(field, `${short(value)} is not a whole number from ${low} to ${high}`);
  }
  return value;
}

function capabilities(field, value) {
  const words = typeof value === "string" ? value.split(/[\s,]+/).filter(Boolean) : value;
  if (typeof words !== "object" || typeof words[Symbol.iterator] !== "function") {
    throw new InvalidJob(field, `${short(value)} is not a list of capabilities`);
  }
  const unique = new Set(words);
  for (const word of unique) {
    if (typeof word !== "string" || !CAPABILITY.test(word)) {
      const problem = "is not a capability: 1 to 100 printable characters, no spaces";
      throw new InvalidJob(field, `${short(word)} ${problem}`);
    }
  }
  const text = [...unique].sort().join(" ");
  if (text.length > limits.requires) {
    const problem = `the capabilities have ${text.length} characters together; at most ${limits.requires}`;
    throw new InvalidJob(field, problem);
  }
  return text;
}

/** A duration in milliseconds: "10s", or milliseconds. Throws InvalidJob. */
function milliseconds(field, value) {
  const [, number, unit] = (typeof value === "string" && DURATION.exec(value)) || [];
  const found = unit === undefined ? value : Number(number) * UNITS[unit];
  if (typeof found !== "number" || !Number.isFinite(found) || found < 0) {
    throw new InvalidJob(field, `${short(value)} is not a duration; write it like "10s", "5m" or "2h", or in milliseconds`);
  }
  return found;
}

// Times are Unix seconds, as the table has them.
function delayOf(field, value, now) {
  return within(field, now + milliseconds(field, value) / 1000);
}

function moment(field, value) {
  if (!(value instanceof Date)) throw new InvalidJob(field, `${short(value)} is not a Date`);
  return within(field, value.getTime() / 1000);
}

function within(field, time) {
  if (!(time >= 0 && time < limits.time)) throw new InvalidJob(field, "the time is not valid, or out of range");
  return time;
}

function textKey(field, value, most) {
  if (typeof value !== "string" || value === "" || [...value].length > most) {
    throw new InvalidJob(field, `${short(value)} is not a string of 1 to ${most} characters`);
  }
  if (!value.isWellFormed()) {
    throw new InvalidJob(field, "it contains a lone surrogate, which UTF-8 cannot encode");
  }
  if (value.includes("\0")) throw new InvalidJob(field, "it contains a NUL character");
  return value;
}

/** JSON text of an object; null for an empty one. */
function jsonObject(field, value) {
  if (typeof value !== "object" || Array.isArray(value)) {
    throw new InvalidJob(field, `${short(value)} is not a JSON object`);
  }
  const text = encode(field, value);
  if (!text.startsWith("{")) throw new InvalidJob(field, `${short(value)} is not a JSON object`);
  const size = Buffer.byteLength(text);
  if (size > limits.meta_bytes) {
    throw new InvalidJob(field, `it has ${size} bytes of JSON; the limit is ${limits.meta_bytes} (16 KiB)`);
  }
  return text === "{}" ? null : text;
}

function short(value) {
  let text;
  try {
    text = typeof value === "string" || (typeof value === "object" && value) ? JSON.stringify(value) : String(value);
  } catch {
    text = Object.prototype.toString.call(value);
  }
  text ??= typeof value;
  return text.length <= 60 ? text : `${text.slice(0, 57)}...`;
}

module.exports = { newJob, encode, milliseconds };
