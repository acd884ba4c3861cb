/** The calls of the console: statements, messages, acknowledgements; each as whoever is signed in. */

import type { Param, Value } from "tablecast";
import { ApiError } from "./errors.ts";
import { request, type RequestOptions } from "./http.ts";
import { accessToken } from "./session.ts";
import { quotedName } from "./sql/quote.ts";

export { ApiError, asApiError } from "./errors.ts";

export interface Column {
  name: string;
  type: string;
}

/** Of one statement. `schema` is empty if it answers no rows. */
export interface Result {
  schema: Column[];
  rows: Value[][];
  row_count: number;
  message: string;
  seq: number | null;
}

export interface Answer {
  results: Result[];
  took_ms: number;
}

export type Start =
  | { type: "Earliest" | "Latest" }
  | { type: "Offset"; offset: number }
  | { type: "Timestamp"; timestamp: string | number };

export interface Message {
  topic_id: number;
  partition_id: number;
  offset: number;
  message_id: string;
  source_table: string;
  op: "insert" | "update" | "delete";
  ts: number;
  payload_mode: "full" | "key" | "diff";
  key: string;
  /** base64 of JSON: `payloadOf` decodes it. */
  payload: string;
  user_id: string | null;
  seq: number;
  content_hash: string;
  delivery: number;
}

export interface Consumed {
  messages: Message[];
  next_offset: number | null;
  next_offsets: Record<string, number>;
  has_more: boolean;
  skipped: [number, number, number][];
  consumer: string | null;
}

/** `topic` is its full name, as system tables have it. */
export interface ConsumeRequest {
  topic: string;
  start?: Start;
  limit?: number;
  partition_id?: number | null;
  timeout_seconds?: number;
  group_id?: string;
  consumer?: string;
  visibility_seconds?: number;
}

export interface AckRequest {
  topic: string;
  group_id: string;
  partition_id: number;
  upto_offset?: number;
  offsets?: number[];
  nack?: boolean;
  reason?: string;
  consumer?: string;
}

type Options = Pick<RequestOptions, "signal" | "idempotencyKey">;

/** As `request`, signed in. A token that ended is renewed once. */
export async function call<T>(method: string, path: string, body?: unknown, options: Options = {}): Promise<T> {
  const send = async (refused: boolean) =>
    request<T>(method, path, body, { ...options, token: await accessToken(refused) });
  try {
    return await send(false);
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return send(true);
    throw error;
  }
}

/** Statements as text, separated by semicolons: the results of all of them. */
export function sql(text: string, params: Param[] = [], options: Options = {}): Promise<Answer> {
  return call<Answer>("POST", "sql", { sql: text, params }, options);
}

/** The rows of one SELECT, as objects. */
export async function rows<T>(text: string, params: Param[] = [], options: Options = {}): Promise<T[]> {
  const { results } = await sql(text, params, options);
  const last = results.at(-1);
  if (last === undefined) return [];
  return last.rows.map((row) => Object.fromEntries(last.schema.map(({ name }, at) => [name, row[at]])) as T);
}

export function consume(wanted: ConsumeRequest, options: Options = {}): Promise<Consumed> {
  return call<Consumed>("POST", "topics/consume", { ...wanted, topic: quotedName(wanted.topic) }, options);
}

export function ack(
  wanted: AckRequest,
  options: Options = {},
): Promise<{ success: boolean; acknowledged_offset: number | null }> {
  return call("POST", "topics/ack", { ...wanted, topic: quotedName(wanted.topic) }, options);
}

/** The JSON that a message carries, as it was written. */
export function payloadText(message: Message): string {
  const bytes = Uint8Array.from(atob(message.payload), (char) => char.charCodeAt(0));
  return new TextDecoder().decode(bytes);
}

/** Its value. */
export function payloadOf(message: Message): Value {
  return JSON.parse(payloadText(message)) as Value;
}
