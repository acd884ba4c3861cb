/** What the editor completes: the tables, columns and topics that there are. Fetched when the page opens and after DDL. */

import { rows, sql } from "../api.ts";
import { may } from "../session.ts";

/** By namespace, by table: its columns. A topic has none. */
export type Names = Record<string, Record<string, string[]>>;

/** System tables are in no table of theirs. */
const SYSTEM_TABLES = [
  "audit_log",
  "cluster",
  "columns",
  "jobs",
  "live_queries",
  "loads",
  "metrics",
  "namespaces",
  "pipelines",
  "replication",
  "replication_quarantine",
  "settings",
  "tables",
  "topic_claims",
  "topic_groups",
  "topic_offsets",
  "topic_partitions",
  "topic_redriven",
  "topic_sources",
  "topics",
  "users",
];

let fetched: Promise<Names> = Promise.resolve({});

/** Those fetched last, also while they are on their way. */
export function names(): Promise<Names> {
  return fetched;
}

/** Completion is a convenience: what fails here shows nowhere. */
export function fetchNames(): void {
  fetched = (may("see system tables") ? allNames() : tableNames()).catch(() => ({}));
}

/** At sign-out. */
export function forgetNames(): void {
  fetched = Promise.resolve({});
}

async function allNames(): Promise<Names> {
  const [columns, topics] = await Promise.all([
    rows<{ namespace: string; table_name: string; name: string }>(
      "SELECT namespace, table_name, name FROM system.columns ORDER BY namespace, table_name, position",
    ),
    rows<{ namespace: string; name: string }>("SELECT namespace, name FROM system.topics"),
  ]);
  const found: Names = { system: Object.fromEntries(SYSTEM_TABLES.map((name) => [name, []])) };
  for (const { namespace, table_name, name } of columns) ((found[namespace] ??= {})[table_name] ??= []).push(name);
  for (const { namespace, name } of topics) (found[namespace] ??= {})[name] ??= [];
  return found;
}

/** What every role may ask. */
async function tableNames(): Promise<Names> {
  const [shown] = (await sql("SHOW TABLES")).results;
  const at = (name: string) => shown!.schema.findIndex((column) => column.name === name);
  const found: Names = {};
  for (const row of shown!.rows) (found[String(row[at("namespace")])] ??= {})[String(row[at("name")])] = [];
  return found;
}

/** Whether a text may have changed what there is. */
export function defines(text: string): boolean {
  return /\b(create|drop|alter)\b/i.test(text);
}
