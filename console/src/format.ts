/** Numbers, sizes and times as people read them. */

const WHOLE = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en-GB", { notation: "compact", maximumFractionDigits: 1 });
const SMALL = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 2 });

/** BIGINTs come as text. */
export type Numeric = number | string | null | undefined;

export function count(value: Numeric): string {
  return value === null || value === undefined ? "–" : WHOLE.format(BigInt(Math.trunc(Number(value))));
}

export function short(value: number | null): string {
  if (value === null) return "–";
  if (value !== 0 && Math.abs(value) < 10) return SMALL.format(value);
  return Math.abs(value) < 10_000 ? WHOLE.format(value) : SHORT.format(value);
}

export function perSecond(value: number | null): string {
  return value === null ? "–" : `${short(value)}/s`;
}

export function bytes(value: Numeric): string {
  if (value === null || value === undefined) return "–";
  let size = Number(value);
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 1024) return `${size < 10 && unit !== "B" ? size.toFixed(1) : Math.round(size)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1e-3) return `${SMALL.format(seconds * 1e6)} µs`;
  if (seconds < 1) return `${SMALL.format(seconds * 1e3)} ms`;
  if (seconds < 60) return `${SMALL.format(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

export function ago(time: Date, now = Date.now()): string {
  const seconds = Math.max(0, (now - time.getTime()) / 1000);
  return seconds < 5 ? "just now" : `${duration(Math.floor(seconds))} ago`;
}

export function plural(number: Numeric, one: string, many = `${one}s`): string {
  return `${count(number)} ${Number(number) === 1 ? one : many}`;
}
