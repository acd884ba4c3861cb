/** One reader of one live query: waits for steps, takes them in order. */

import { ENDED } from "./state.js";

export class StepReader {
  #link;
  #query;
  #wake = () => {};

  constructor(link, sql, params, namespace) {
    this.#link = link;
    this.#query = link.open(sql, params, namespace, this);
  }

  /** Names of the selected columns; none before the first step. */
  get columns() {
    return this.#query.shape.columns;
  }

  /** The next step; null when it was closed. Throws what ended it, after the steps before it, and again each time. */
  async next() {
    while (this.#query.steps.length === 0) {
      if (this.#query.state === ENDED) return this.#over();
      await new Promise((resolve) => (this.#wake = resolve));
    }
    return this.#link.take(this.#query);
  }

  #over() {
    if (this.#query.error === null) return null;
    throw this.#query.error;
  }

  arrived() {
    this.#wake();
  }

  close() {
    this.#link.close(this.#query);
  }
}
