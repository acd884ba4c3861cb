/** Values over time that are looked at once a second: for plots of what a page shows anyway. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { Series } from "../series.ts";

const SAMPLE_MS = 1_000;
const FIRST_SECONDS = 60; // that the time axis shows from the beginning, empty as they are

/** `look` says the values as of now, or null while there are none. */
export function useSampled(width: number, look: () => (number | null)[] | null): { series: Series; version: number } {
  const series = useMemo(() => new Series(width), []);
  const version = useSignal(0);
  useEffect(() => {
    series.add(Date.now() / 1000 - FIRST_SECONDS, []);
    const sample = () => {
      const values = look();
      if (values === null) return;
      series.add(Date.now() / 1000, values);
      version.value += 1;
    };
    sample();
    const timer = setInterval(sample, SAMPLE_MS);
    return () => clearInterval(timer);
  }, []);
  return { series, version: version.value };
}
