/** Seeded chance (mulberry32): a run that failed can be made again. */

export class Chance {
  #state;

  constructor(seed) {
    this.#state = seed >>> 0;
  }

  /** From 0 to below 1. */
  next() {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  below(limit) {
    return Math.floor(this.next() * limit);
  }

  happens(probability) {
    return this.next() < probability;
  }
}
