/** Numbers over time: a ring of samples for plots, rates of counters, quantiles of histograms. */

export const KEPT_SAMPLES = 600; // ten minutes, a sample a second
const LEAST_SECONDS = 60; // of time that a plot shows, also while there are fewer samples

/** From when to when a plot of these samples is, in seconds; `now` is the end of one that has none. */
export function shownTime(times: ArrayLike<number>, now: number): [number, number] {
  const end = times[times.length - 1] ?? now;
  return [Math.min(times[0] ?? end, end - LEAST_SECONDS), end];
}

/** Samples of several values, oldest first. The oldest goes when it is full. */
export class Series {
  readonly #times: number[] = [];
  readonly #values: (number | null)[][];

  constructor(
    readonly width: number,
    readonly kept = KEPT_SAMPLES,
  ) {
    this.#values = Array.from({ length: width }, () => []);
  }

  get length(): number {
    return this.#times.length;
  }

  /** `null` is a gap. Time is in seconds and does not go back. */
  add(time: number, values: (number | null)[]): void {
    this.#times.push(time);
    this.#values.forEach((column, at) => column.push(values[at] ?? null));
    if (this.#times.length <= this.kept) return;
    this.#times.shift();
    for (const column of this.#values) column.shift();
  }

  /** Times, then each value's samples: what a plot draws. */
  get columns(): [number[], ...(number | null)[][]] {
    return [this.#times, ...this.#values];
  }

  latest(at: number): number | null {
    return this.#values[at]?.at(-1) ?? null;
  }
}

/** How fast a counter grows, from one sample to the next. A counter that fell was started again: that is no rate. */
export class Rate {
  #before: { time: number; count: number } | null = null;

  /** Per second since the sample before; null at the first. */
  next(time: number, count: number): number | null {
    const before = this.#before;
    this.#before = { time, count };
    if (before === null || time <= before.time || count < before.count) return null;
    return (count - before.count) / (time - before.time);
  }
}

/** Cumulative buckets of a histogram by their upper bounds, as `/metrics` has them. */
export type Buckets = Map<number, number>;

/** Quantiles of what was observed between two samples of a histogram. */
export class HistogramDelta {
  #before: Buckets | null = null;

  /** Null where nothing was observed. */
  next(buckets: Buckets, quantiles: number[]): (number | null)[] {
    const before = this.#before;
    this.#before = buckets;
    if (before === null) return quantiles.map(() => null);
    const grown = [...buckets].map(([bound, count]) => [bound, count - (before.get(bound) ?? 0)] as const);
    return quantiles.map((quantile) => quantileOf(grown, quantile));
  }
}

/** Linear inside of a bucket; what lies above the last bound is that bound. */
export function quantileOf(cumulative: (readonly [bound: number, count: number])[], quantile: number): number | null {
  const sorted = [...cumulative].sort(([a], [b]) => a - b);
  const total = sorted.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let [lower, below] = [0, 0];
  for (const [bound, count] of sorted) {
    if (count >= quantile * total) {
      if (!Number.isFinite(bound)) return lower;
      return count === below ? bound : lower + ((bound - lower) * (quantile * total - below)) / (count - below);
    }
    [lower, below] = [bound, count];
  }
  return lower;
}
