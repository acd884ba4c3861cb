/** A table that keeps itself in step: the current rows of a live query, by key. */

import { TablecastError, callBack } from "./errors.js";
import { StepReader } from "./reader.js";
import { LiveRows } from "./rows.js";

export class LiveTable {
  #reader;
  #kept = new LiveRows();
  #listeners = new Set();
  #waiting = []; // each looks again after every move, and says whether it waits on
  #isOver = false;
  #error = null;

  /** Settles when the table is over: with null, or with the error that ended it. */
  ended;

  constructor(link, sql, params, namespace) {
    this.#reader = new StepReader(link, sql, params, namespace);
    this.ended = this.#follow();
  }

  // --- what is there ---

  /** Names of the selected columns; known when it is ready. */
  get columns() {
    return this.#reader.columns;
  }

  /** Rows by the JSON text of their key. The map stays as it is: read `rows` again for newer ones. */
  get rows() {
    return this.#kept.given();
  }

  /** The row with this key, given value by value. */
  get(...key) {
    return this.#kept.get(key);
  }

  /** The commit that last changed the rows. */
  get seq() {
    return this.#kept.seq;
  }

  // --- what changes ---

  /** Resolves when the rows are there. */
  async ready() {
    if (await this.#isLater(0)) return this;
    throw new TablecastError("database_closed", "the live table was closed before its rows were there");
  }

  /** Called with the changes of each commit, when they are in `rows`. Returns how to stop that. */
  onChange(listener) {
    const own = (changes) => listener(changes); // one function may be given twice
    this.#listeners.add(own);
    return () => void this.#listeners.delete(own);
  }

  /** The rows when they are ready, and again whenever they have changed. Who is slow gets the latest only. */
  async *[Symbol.asyncIterator]() {
    let version = 0;
    while (await this.#isLater(version)) {
      version = this.#kept.version;
      yield this.rows;
    }
  }

  /** Ends the subscription. The rows stay as they are. Idempotent. */
  close() {
    this.#reader.close();
  }

  // --- folding ---

  async #follow() {
    try {
      for (let step; (step = await this.#reader.next()) !== null; ) this.#fold(step);
    } catch (error) {
      this.#error = error;
    }
    this.#isOver = true;
    this.#move();
    return this.#error;
  }

  #fold(step) {
    const changes = this.#kept.fold(step);
    if (changes.length === 0) return;
    for (const listener of [...this.#listeners]) callBack(listener, changes);
    this.#move();
  }

  #move() {
    this.#waiting = this.#waiting.filter((waitsOn) => waitsOn());
  }

  /** Waits for a state after that version. False: closed, there will be none. Throws what ended the live query. */
  #isLater(version) {
    return new Promise((resolve, reject) => {
      this.#waiting.push(() => {
        if (this.#kept.version > version) resolve(true);
        else if (this.#error !== null) reject(this.#error);
        else if (this.#isOver) resolve(false);
        else return true;
        return false;
      });
      this.#move();
    });
  }
}
