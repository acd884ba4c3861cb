/** The changes of a live query, one by one: first the rows that are there, then what changes, as it is committed. */

import { StepReader } from "./reader.js";

export class LiveChanges {
  #reader;
  #isClosed = false;
  #changes = this.#read();

  constructor(link, sql, params, namespace) {
    this.#reader = new StepReader(link, sql, params, namespace);
  }

  get columns() {
    return this.#reader.columns;
  }

  next() {
    return this.#changes.next();
  }

  /** What `break` in a `for await` calls. */
  return(value) {
    this.close();
    return this.#changes.return(value);
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** Ends the subscription, and an iteration that waits. Idempotent. */
  close() {
    this.#isClosed = true;
    this.#reader.close();
  }

  async *#read() {
    let step;
    while ((step = await this.#reader.next()) !== null) {
      for (const change of step.changes) {
        if (this.#isClosed) return;
        yield change;
      }
    }
  }
}
