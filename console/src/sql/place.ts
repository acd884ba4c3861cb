/** Where in the text an error is: the server tells a line and a column, or the number of the statement and a name in it. */

import type { ApiError } from "../errors.ts";
import { statementsOf } from "./statements.ts";

export interface Place {
  from: number;
  to: number;
}

/** What the server names as the culprit, the most telling first. */
const CULPRITS = ["column", "table", "function", "topic", "name", "namespace"];

export function placeOf(error: ApiError, text: string): Place | null {
  const { line, column } = error.details;
  if (typeof line === "number" && typeof column === "number") return wordAt(text, offsetOf(text, line, column));
  const statement = statementsOf(text)[Number(error.details.statement ?? 1) - 1];
  if (statement === undefined) return null;
  for (const name of CULPRITS) {
    const found = find(statement.text, error.details[name]);
    if (found !== null) return { from: statement.from + found.from, to: statement.from + found.to };
  }
  return { from: statement.from, to: statement.to };
}

/** Lines and columns count from 1, columns in code points. */
function offsetOf(text: string, line: number, column: number): number {
  const before = text.split("\n").slice(0, line - 1);
  const start = before.reduce((sum, part) => sum + part.length + 1, 0);
  const within = [...(text.slice(start).split("\n", 1)[0] ?? "")].slice(0, column - 1).join("").length;
  return Math.min(text.length, start + within);
}

function wordAt(text: string, from: number): Place {
  const word = /^(\w+|[^\s\w])/.exec(text.slice(from))?.[0] ?? "";
  if (word !== "") return { from, to: from + word.length };
  return { from: Math.max(0, from - 1), to: Math.max(from, 1) }; // at the end: what came before it
}

/** A name as a word of its own; a table may be told with a namespace that the text leaves out. */
function find(text: string, culprit: unknown): Place | null {
  if (typeof culprit !== "string" || culprit === "") return null;
  for (const name of [culprit, culprit.split(".").at(-1)!]) {
    const match = new RegExp(`(?<![\\w.])${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}(?!\\w)`, "i").exec(text);
    if (match !== null) return { from: match.index, to: match.index + match[0].length };
  }
  return null;
}
