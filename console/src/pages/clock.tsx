/** A time of day in the browser's own zone, with its date if that is another one; in UTC on hovering. */

import type { Numeric } from "../format.ts";

const TIME = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat("en-CA"); // 2026-01-31

export function Clock(props: { at: NonNullable<Numeric> }) {
  const time = new Date(props.at);
  const day = DAY.format(time);
  return (
    <time dateTime={time.toISOString()} title={time.toISOString()}>
      {day === DAY.format(new Date()) ? "" : `${day} `}
      {TIME.format(time)}
    </time>
  );
}
