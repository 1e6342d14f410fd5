"use strict";

/** Any error that the queue itself reports. Errors of the driver, such as SQLITE_BUSY, are passed on as they are. */
class QueueError extends Error {
  get name() {
    return this.constructor.name;
  }
}

/** Invalid input: nothing was written. `field` names the argument. */
class InvalidJob extends QueueError {
  constructor(field, problem) {
    super(`${field}: ${problem}`);
    this.field = field;
  }
}

/** No job has this id: it never existed, or retention has deleted it. */
class JobNotFound extends QueueError {
  constructor(id) {
    super(`no job has the id ${id}`);
    this.jobId = id;
  }
}

/** `wait` has stopped waiting; the job continues. */
class WaitTimeout extends QueueError {
  constructor(id, milliseconds) {
    super(`job ${id} has not finished within ${milliseconds} ms`);
    this.jobId = id;
  }
}

/** The current state does not allow the request, for example to cancel a finished job. */
class Conflict extends QueueError {}

/** The database cannot be used; the message says why and what to do. */
class StoreError extends QueueError {}

module.exports = { QueueError, InvalidJob, JobNotFound, WaitTimeout, Conflict, StoreError };
