/**
 * Everything that goes wrong is a TablecastError. Its `code` is stable: the server's own (docs/errors.md), or one of the
 * same list that the client found out itself, as `unreachable`.
 */

const PASSING = new Set(["overloaded", "rate_limited", "too_many_requests", "transaction_conflict", "unreachable"]);

export class TablecastError extends Error {
  constructor(code, message, details = {}, options = undefined) {
    super(message, options);
    this.name = "TablecastError";
    this.code = code;
    this.details = details;
  }

  /** Whether the same may succeed later. */
  get retryable() {
    return PASSING.has(this.code);
  }
}

/** Calls what a program gave us. What it throws is the program's: it is reported, and stops nothing of ours. */
export function callBack(callback, ...values) {
  try {
    callback(...values);
  } catch (error) {
    queueMicrotask(() => {
      throw error;
    });
  }
}
