/**
 * JSON as it was written. JavaScript would round a long number; here every number keeps its digits, in browsers that
 * give them (all that are current).
 */

/** As `JSON.parse` makes it, but for numbers that it would change: those are kept as their text. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

const keep = (JSON as { rawJSON?: (text: string) => Json }).rawJSON;

export function parseExactly(text: string): Json {
  const exact = (_name: string, value: Json, context?: { source?: string }): Json => {
    const source = context?.source;
    const isChanged = typeof value === "number" && source !== undefined && String(value) !== source;
    return isChanged && keep !== undefined ? keep(source) : value;
  };
  return JSON.parse(text, exact) as Json;
}

/** Over several lines; a text as it is. */
export function pretty(value: Json | undefined): string {
  if (value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** The members of an object; of anything else none. */
export function membersOf(value: Json | undefined): Record<string, Json> {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};
}
