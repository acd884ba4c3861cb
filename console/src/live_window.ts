/**
 * A live result of any size and speed, as much of it as can be shown.
 *
 * `LiveWindow` folds changes into a bounded list: rows that changed since the beginning on top, the latest first, then those
 * that were there. So a change is seen wherever its row was. It marks its row, which flashes; a deleted row stays until it
 * has faded.
 *
 * What is painted is always a true state. When changes come faster than eyes can follow it is painted a few times a
 * second instead of in every frame, and says that it is a sample.
 */

import type { Change, Row } from "tablecast";

export type Mark = "insert" | "update" | "delete";

export interface WindowRow {
  key: string;
  row: Row;
  /** What changed it last; null if it was there from the beginning. */
  mark: Mark | null;
  /** When, in milliseconds. */
  markedAt: number;
  /** How often: two flashes of the same kind must differ for the browser to begin anew. */
  turn: number;
}

/** What one paint shows. */
export interface View {
  rows: readonly WindowRow[];
  /** Of the whole result. */
  total: number;
  perSecond: number;
  isSampled: boolean;
  at: number;
}

export const MAX_INITIAL = 5_000; // rows kept of those that were there
export const MAX_FRESH = 5_000; // rows kept of those that came or changed since
export const FLASH_MS = 1_400; // as in sql.css
export const FAST_PER_SECOND = 250; // from here on every frame would be another picture
export const SAMPLE_MS = 250; // between two pictures of a fast result

export class LiveWindow {
  #initial = new Map<string, WindowRow>();
  #fresh = new Map<string, WindowRow>(); // in the order they came or changed
  #deleted = new Set<string>();
  #total = 0;
  readonly #speed = new Speedometer();

  apply(change: Change, now: number): void {
    if (change.op === "reset") return this.#clear();
    const key = JSON.stringify(change.key);
    if (change.op !== "delete" && change.initial) return this.#begin(key, change.row);
    this.#speed.count(now);
    this.#total += change.op === "insert" ? 1 : change.op === "delete" ? -1 : 0;
    if (change.op === "delete") this.#delete(key, now);
    else this.#put(key, change.row, change.op, now);
  }

  /** What there is to see now. Rows that have faded are gone. */
  view(now: number): View {
    this.#forgetFaded(now);
    const perSecond = this.#speed.perSecond(now);
    return {
      rows: [...[...this.#fresh.values()].reverse(), ...this.#initial.values()],
      total: Math.max(0, this.#total),
      perSecond,
      isSampled: perSecond >= FAST_PER_SECOND,
      at: now,
    };
  }

  /** Whether it will look different later, though nothing more may come. */
  isMoving(now: number): boolean {
    return this.#deleted.size > 0 || this.#speed.perSecond(now) > 0;
  }

  #clear(): void {
    this.#initial.clear();
    this.#fresh.clear();
    this.#deleted.clear();
    this.#total = 0;
  }

  #begin(key: string, row: Row): void {
    this.#total += 1;
    if (this.#initial.size < MAX_INITIAL) this.#initial.set(key, { key, row, mark: null, markedAt: 0, turn: 0 });
  }

  #put(key: string, row: Row, mark: Mark, now: number): void {
    this.#deleted.delete(key); // deleted, and there again before it had faded
    this.#onTop({ key, row, mark, markedAt: now, turn: (this.#find(key)?.turn ?? 0) + 1 });
  }

  #onTop(row: WindowRow): void {
    this.#initial.delete(row.key);
    this.#fresh.delete(row.key); // where it stood: a map keeps the order in which keys came
    this.#fresh.set(row.key, row);
    if (this.#fresh.size <= MAX_FRESH) return;
    const oldest: string = this.#fresh.keys().next().value!;
    this.#fresh.delete(oldest);
    this.#deleted.delete(oldest);
  }

  #delete(key: string, now: number): void {
    const known = this.#find(key);
    if (known === undefined) return;
    this.#onTop({ ...known, mark: "delete", markedAt: now, turn: known.turn + 1 });
    this.#deleted.add(key);
  }

  #find(key: string): WindowRow | undefined {
    return this.#fresh.get(key) ?? this.#initial.get(key);
  }

  #forgetFaded(now: number): void {
    for (const key of this.#deleted) {
      const row = this.#find(key);
      if (row !== undefined && now - row.markedAt < FLASH_MS) continue;
      this.#deleted.delete(key);
      this.#fresh.delete(key);
      this.#initial.delete(key);
    }
  }
}

const SLOT_MS = 100;
const SLOTS = 11; // a second, and the one that is not over

/** Events per second, over the last second. */
class Speedometer {
  readonly #counts = new Array<number>(SLOTS).fill(0);
  #slot = 0; // the last one counted in, since 1970

  count(now: number): void {
    this.#turnTo(now);
    this.#counts[this.#slot % SLOTS]! += 1;
  }

  perSecond(now: number): number {
    this.#turnTo(now);
    const seconds = (SLOT_MS * (SLOTS - 1) + (now % SLOT_MS)) / 1000;
    return Math.round(this.#counts.reduce((sum, count) => sum + count, 0) / seconds);
  }

  #turnTo(now: number): void {
    const slot = Math.floor(now / SLOT_MS);
    const passed = Math.min(SLOTS, Math.max(0, slot - this.#slot));
    for (let step = 1; step <= passed; step += 1) this.#counts[(slot - passed + step) % SLOTS] = 0;
    this.#slot = Math.max(this.#slot, slot);
  }
}
