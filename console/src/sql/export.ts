/** Results as text for other programs. */

import type { Value } from "tablecast";
import type { Column } from "../api.ts";

/** RFC 4180. NULL is an empty field, empty text a quoted one. */
export function toCsv(schema: Column[], rows: Value[][]): string {
  const lines = [schema.map(({ name }) => quoted(name)), ...rows.map((row) => row.map(field))];
  return lines.map((line) => `${line.join(",")}\r\n`).join("");
}

export function toJson(schema: Column[], rows: Value[][]): string {
  return JSON.stringify(
    rows.map((row) => Object.fromEntries(schema.map(({ name }, at) => [name, row[at]]))),
    null,
    2,
  );
}

function field(value: Value): string {
  if (value === null) return "";
  return quoted(textOf(value));
}

function quoted(text: string): string {
  return text === "" || /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** As a cell shows it. */
export function textOf(value: Value): string {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value);
}
