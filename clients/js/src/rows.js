/**
 * The rows of a live query, kept by folding its steps.
 *
 * Whole commits only, and rows that were given out do not change: they are copied before the next step is folded in.
 * While initial rows come, first or again, the rows before them stay.
 */

/** Keys are compared by value; an array as the key of a Map is not. */
export function keyText(key) {
  return JSON.stringify(key);
}

export class LiveRows {
  #rows = new Map();
  #isGiven = false; // #rows is in somebody's hands
  #coming = new Map(); // initial rows, not all of them yet; null when they are

  seq = 0;
  /** Counts whole states that differ from the one before; 0 until there is one. */
  version = 0;

  given() {
    this.#isGiven = true;
    return this.#rows;
  }

  get(key) {
    return this.#rows.get(keyText(key));
  }

  /** What the rows differ by now: the step's changes, a reset if all of them were replaced, or nothing yet. */
  fold({ changes, seq, whole }) {
    if (changes[0]?.op === "reset") {
      this.#coming = new Map();
      return [];
    }
    if (this.#coming !== null) return this.#load(changes, seq, whole);
    if (changes.length > 0) this.#replace(applied(changes, this.#isGiven ? new Map(this.#rows) : this.#rows), seq);
    return changes;
  }

  #load(changes, seq, whole) {
    applied(changes, this.#coming);
    if (!whole) return [];
    this.#replace(this.#coming, seq);
    this.#coming = null;
    return [{ op: "reset", seq }];
  }

  #replace(rows, seq) {
    this.#rows = rows;
    this.#isGiven = false;
    this.seq = seq;
    this.version += 1;
  }
}

function applied(changes, rows) {
  for (const { op, key, row } of changes) {
    if (op === "delete") rows.delete(keyText(key)); // with LIMIT a row may go that was never told
    else rows.set(keyText(key), row);
  }
  return rows;
}
