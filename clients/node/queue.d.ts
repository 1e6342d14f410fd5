/** A synchronous SQLite connection: better-sqlite3's `Database`, or `DatabaseSync` of node:sqlite. */
export interface Connection {
  prepare(sql: string): unknown;
  exec(sql: string): unknown;
}

/** "250ms", "10s", "5m", "2h", "7d", or a number of milliseconds. */
export type Duration = number | `${number}${"ms" | "s" | "m" | "h" | "d"}`;

export type Status = "pending" | "running" | "done" | "failed" | "cancelled" | "quarantined";

export interface QueueOptions {
  /** Make the database and its tables on first use if they are missing. Default true. */
  create?: boolean;
  /** How long a write waits for other programs that write; also the limit of `withoutBlocking`. Default "5s". */
  timeout?: Duration;
}

export interface JobOptions {
  /** −100 to 100, higher first. Default 0. */
  priority?: number;
  /** The earliest start, from now. */
  delay?: Duration;
  /** The earliest start. */
  at?: Date;
  /** Capabilities that the worker must have: `["gpu", "tag@2"]`. */
  requires?: string | Iterable<string>;
  /** Overrides the limit of the pool. */
  maxAttempts?: number;
  /** While a job of this type with this key is unfinished, enqueueing returns that job. */
  uniqueKey?: string;
  /** Jobs of one type with this key run one at a time, or as many as configured. */
  concurrencyKey?: string;
  /** Whose turn it is, where the type is fair. */
  fairKey?: string;
  /** The job is cancelled if it has not started within this time. */
  expiresIn?: Duration;
  /** The same as a time. */
  expiresAt?: Date;
  /** The id of the batch that it belongs to. */
  batch?: number;
  /** An object of your own, stored and shown with the job; at most 16 KiB of JSON. */
  meta?: object;
}

export interface WaitOptions {
  timeout?: Duration;
  signal?: AbortSignal;
}

/** One row of the table, as it was when it was read. */
export interface Job<Payload = any> {
  id: number;
  type: string;
  payload: Payload;
  status: Status;
  priority: number;
  requires: string[];
  attempts: number;
  maxAttempts: number | null;
  crashes: number;
  uniqueKey: string | null;
  /** 0 to 1, as the running job last reported it. */
  progress: number | null;
  progressText: string | null;
  /** What the handler returned. */
  result: any;
  /** The latest failure in one message. */
  lastError: string | null;
  meta: any;
  scheduledAt: Date;
  startedAt: Date | null;
  completedAt: Date | null;
  cancelRequestedAt: Date | null;
}

/**
 * The queue of one database.
 *
 * With a path the queue has a connection of its own, which commits with `synchronous = FULL`. With a connection the
 * jobs belong to whatever transaction is open there. `Jobs` may say which payload each type has:
 *
 *     const queue = new Queue<{ tag: { path: string } }>("app.db");
 */
export class Queue<Jobs extends object = Record<string, any>> {
  constructor(database: string | Connection, options?: QueueOptions);

  /** Enqueue one job; returns its id. Throws InvalidJob, with nothing written, for invalid values. */
  enqueue<Type extends keyof Jobs & string>(type: Type, payload?: Jobs[Type], options?: JobOptions): number;

  /** The same; also says whether the job is new, or one that had the same `uniqueKey`. */
  put<Type extends keyof Jobs & string>(
    type: Type,
    payload?: Jobs[Type],
    options?: JobOptions,
  ): { id: number; isNew: boolean };

  /** A job for each payload, all of them or none; returns their ids in order. Options may differ by payload. */
  enqueueMany<Type extends keyof Jobs & string>(
    type: Type,
    payloads: Iterable<Jobs[Type]>,
    options?: JobOptions | ((payload: Jobs[Type], index: number) => JobOptions | undefined),
  ): number[];

  /** The job as it is now. Throws JobNotFound. */
  job<Type extends keyof Jobs & string = keyof Jobs & string>(id: number): Job<Jobs[Type]>;

  /**
   * Resolves when the job has finished, however it ended. Rejects with WaitTimeout when the time is up (the job
   * continues), with JobNotFound, or with the reason of the signal.
   */
  wait<Type extends keyof Jobs & string = keyof Jobs & string>(
    id: number,
    options?: WaitOptions,
  ): Promise<Job<Jobs[Type]>>;

  /** "cancelled" for a job that had not begun; "running" for one that was asked to stop. Throws Conflict, JobNotFound. */
  cancel(id: number): "cancelled" | "running";

  /** Make the tables now, instead of on first use; on a connection with an open transaction, as part of that. */
  createTables(): void;

  /**
   * Run `work`, a function that uses SQLite, and return what it returns. While another program writes, it is run
   * again after a pause in which the event loop continues; SQLite's own waiting would stop it.
   */
  withoutBlocking<T>(work: () => T, options?: WaitOptions): Promise<T>;

  /** Close the connection of a queue with a path; those who wait get a StoreError. */
  close(): void;
}

/** Any error that the queue itself reports. Errors of the driver, such as SQLITE_BUSY, are passed on as they are. */
export class QueueError extends Error {}

/** Invalid input: nothing was written. `field` names the argument. */
export class InvalidJob extends QueueError {
  constructor(field: string, problem: string);
  field: string;
}

/** No job has this id: it never existed, or retention has deleted it. */
export class JobNotFound extends QueueError {
  constructor(id: number);
  jobId: number;
}

/** `wait` has stopped waiting; the job continues. */
export class WaitTimeout extends QueueError {
  constructor(id: number, milliseconds: number);
  jobId: number;
}

/** The current state does not allow the request. */
export class Conflict extends QueueError {}

/** The database cannot be used; the message says why and what to do. */
export class StoreError extends QueueError {}
