/**
 * Steps on their way to one reader, in order and bounded. A step is what one message told: `{changes, seq, whole}`;
 * `whole` is false while initial rows are still to come.
 *
 * Who fills it never waits: if there is no room, the live query leaves the fan-out, and resumes when all was read.
 */

export const MAX_QUEUED_CHANGES = 10_000; // of one live query, told and not read yet; a single commit may be larger

export class StepQueue {
  #steps = [];
  #first = 0; // steps before it are read; shift() would move all the others each time
  #changes = 0;
  #maxChanges;
  #isTold = false; // anything at all

  /** The commit that the reader will have reached with what is queued. */
  seq = 0;
  /** The same, as far as it may be resumed from: null while rows are missing. */
  resume = null;

  constructor(maxChanges = MAX_QUEUED_CHANGES) {
    this.#maxChanges = maxChanges;
  }

  get length() {
    return this.#steps.length - this.#first;
  }

  /** An empty one takes a commit of any size: it comes whole. */
  hasRoom(changes = 1) {
    return this.length === 0 || this.#changes + changes <= this.#maxChanges;
  }

  put(step) {
    this.#steps.push(step);
    this.#changes += step.changes.length;
    this.#isTold = true;
    this.seq = step.seq;
    this.resume = step.whole ? step.seq : null;
  }

  /** All rows are to come: whatever the reader has does not count any more. */
  startOver(seq) {
    if (this.#isTold) this.put({ changes: [{ op: "reset", seq }], seq, whole: false });
    this.seq = seq;
    this.resume = null;
  }

  /** There was nothing to tell up to this commit. */
  reach(seq) {
    if (this.resume !== null && seq > this.resume) this.seq = this.resume = seq;
  }

  take() {
    const step = this.#steps[this.#first];
    this.#steps[this.#first++] = undefined;
    this.#changes -= step.changes.length;
    if (this.#first === this.#steps.length) this.clear();
    return step;
  }

  clear() {
    this.#steps = [];
    this.#first = this.#changes = 0;
  }
}
