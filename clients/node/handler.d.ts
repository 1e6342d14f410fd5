import type { Duration, JobOptions } from "./queue.js";

type Write = (event: string, fields?: Record<string, unknown>) => void;

/** `log("event", fields)` is `log.info`. */
export interface Log extends Write {
  debug: Write;
  info: Write;
  warning: Write;
  error: Write;
}

/** What a handler receives besides its payload. In `setup` and `teardown` there is no job, and `jobId` is 0. */
export interface Context<Options = any> {
  /** The same in every run of the job. */
  jobId: number;
  /** The same text in every run of this job, and never that of another job, even after a restore. */
  idempotencyKey: string;
  type: string;
  /** From 1. */
  attempt: number;
  /** The time limit of this run in milliseconds. */
  timeout: number;
  /** The `options` of the pool. */
  options: Options;
  /** The capabilities of the pool. */
  capabilities: string[];
  /** The worker's device from the pool's `gpus`, or null. */
  device: string | null;
  /** Aborted when the job is to stop: it was cancelled, or its time is up. */
  signal: AbortSignal;
  readonly cancelled: boolean;
  log: Log;
  /** 0 to 1. */
  progress(fraction: number, text?: string): void;
  /** Send a piece of the answer to whoever follows the job now: at most 16 KiB of JSON. Throws for anything else. */
  emit(chunk: unknown): void;
  /** Restart the time limit of this run from now. */
  extend(duration: Duration): void;
  /** A job that exists if and only if the completion of this one is recorded. Throws InvalidJob. */
  enqueue(type: string, payload?: unknown, options?: JobOptions): void;
}

export type Handle<Payload = any> = (payload: Payload, ctx: Context) => unknown;

export interface Handler<Payload = any> {
  handle: Handle<Payload>;
  /** Once, before the first job. */
  setup?(ctx: Context): unknown;
  /** Once, after the last. */
  teardown?(ctx: Context): unknown;
}

export interface ServeOptions {
  /** What this program can do; a pool that declares more is refused. */
  capabilities?: Iterable<string>;
}

/** Run the jobs of the pool that has started this program, and end the process when the worker says so. */
export function serve<Payload = any>(
  handler: Handle<Payload> | Handler<Payload> | (new () => Handler<Payload>),
  options?: ServeOptions,
): Promise<void>;

/** This job can never succeed: no further attempt. */
export class Fail extends Error {}

/** Run this job again after `after`; without it the pool's policy decides. */
export class Retry extends Error {
  constructor(message?: string, options?: { after?: Duration });
}
