/** The INSERT behind the form, and the messages that came of it. */

import type { Param } from "tablecast";
import { consume, rows, sql, type Message } from "../api.ts";
import { quotedName } from "../sql/quote.ts";

export interface Column {
  name: string;
  type: string;
  not_null: boolean;
  default: string | null;
}

const PAGE_MESSAGES = 500; // read at a time, to find those of one commit
const MAX_PAGES = 10; // of what others wrote in the same moment

/** By name; empty ones are left out. */
type Values = Record<string, string>;

export function columnsOf(table: string): Promise<Column[]> {
  const [namespace = "", name = ""] = table.split(".");
  return rows<Column>(
    `SELECT name, type, not_null, "default" FROM system.columns
      WHERE namespace = ? AND table_name = ? ORDER BY position`,
    [namespace, name],
  );
}

export function insertText(table: string, columns: Column[], values: Values): string {
  const given = givenOf(columns, values);
  const names = given.map(({ name }) => quotedName(name)).join(", ");
  return `INSERT INTO ${quotedName(table)} (${names}) VALUES (${given.map(() => "?").join(", ")})`;
}

/** Writes the row. The messages are found by the number of its commit, from where the logs ended before it. */
export async function insertInto(topic: string, table: string, columns: Column[], values: Values): Promise<Message[]> {
  const before = await rows<{ partition_id: string; end_offset: string }>(
    "SELECT partition_id, end_offset FROM system.topic_partitions WHERE topic = ?",
    [topic],
  );
  const params = givenOf(columns, values).map(({ name, type }) => paramOf(type, values[name]!));
  const { results } = await sql(insertText(table, columns, values), params);
  const seq = results[0]!.seq!;
  const logs = before.map((log) => ofCommit(topic, Number(log.partition_id), Number(log.end_offset), seq));
  const found = await Promise.all(logs);
  return found.flat().filter(({ source_table }) => source_table === table);
}

function givenOf(columns: Column[], values: Values): Column[] {
  return columns.filter(({ name }) => (values[name] ?? "") !== "");
}

/** What JSON has a type for goes as that; the server reads everything else from its text. */
function paramOf(type: string, text: string): Param {
  if (type === "BOOLEAN") return text === "true";
  if (/^(SMALLINT|INT|FLOAT|DOUBLE)$/.test(type)) return Number.isNaN(Number(text)) ? text : Number(text);
  if (type === "BYTES") return { $bytes: btoa(String.fromCharCode(...new TextEncoder().encode(text))) } as Param;
  return text;
}

/** Messages of one commit in one partition; commits stand there in their order. */
async function ofCommit(topic: string, partition: number, end: number, seq: number): Promise<Message[]> {
  let offset = end;
  const found: Message[] = [];
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const start = { type: "Offset", offset } as const;
    const read = await consume({ topic, partition_id: partition, start, limit: PAGE_MESSAGES, timeout_seconds: 0 });
    found.push(...read.messages.filter((message) => message.seq === seq));
    const last = read.messages.at(-1);
    if (!read.has_more || last === undefined || last.seq > seq) break;
    offset = last.offset + 1;
  }
  return found;
}
