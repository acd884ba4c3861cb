/**
 * Values over time, for plots of what a page shows anyway: a sample when they change, and at least one a second.
 *
 * The series outlive the page, so that whoever comes back to it finds the minutes before, with a gap for the time away. Of
 * many pages those looked at last are kept.
 */

import { effect, useSignal, type ReadonlySignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { Series } from "../series.ts";

const SAMPLE_MS = 1_000;
const FIRST_SECONDS = 60; // that the time axis shows from the beginning, empty as they are
export const KEPT_SERIES = 40; // of ten minutes each

const kept = new Map<string, Series>();

/** The series of that name, begun now if there is none. */
export function keptSeries(name: string, width: number): Series {
  const series = kept.get(name) ?? new Series(width);
  kept.delete(name);
  kept.set(name, series); // the last that would be forgotten
  if (kept.size > KEPT_SERIES) kept.delete(kept.keys().next().value!);
  return series;
}

/** At sign-out: they are of what another may not see. */
export function forgetSeries(): void {
  kept.clear();
}

/** `look` says the values of some rows, or null while there are none. */
export function useSampled<T>(
  name: string,
  width: number,
  rows: ReadonlySignal<T[]>,
  look: (rows: T[]) => (number | null)[] | null,
): { series: Series; version: number } {
  const series = useMemo(() => keptSeries(name, width), [name]);
  const version = useSignal(0);
  useEffect(() => {
    const now = Date.now() / 1000;
    series.add(series.length === 0 ? now - FIRST_SECONDS : now, []); // where it begins, or nobody looked
    let sampledAt = 0;
    const sample = () => {
      const values = look(rows.value);
      if (values === null) return;
      sampledAt = Date.now();
      series.add(sampledAt / 1000, values);
      version.value = version.peek() + 1;
    };
    const stop = effect(sample);
    const timer = setInterval(() => Date.now() - sampledAt >= SAMPLE_MS && sample(), SAMPLE_MS);
    return () => (stop(), clearInterval(timer));
  }, [series]);
  return { series, version: version.value };
}
