/** A lag as a number, and as a bar beside the others'. */

import { Bar } from "../components/index.ts";
import { count, plural } from "../format.ts";
import { isLate } from "./lag.ts";

export function LagBar(props: { row: { lag: number; lag_seconds: number | null }; most: number }) {
  const { row, most } = props;
  return (
    <span class="with-bar">
      <Bar value={row.lag} max={most} tone={isLate(row) ? "warn" : "accent"} label={plural(row.lag, "message")} />
      {count(row.lag)}
    </span>
  );
}
