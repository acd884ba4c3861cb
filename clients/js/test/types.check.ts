/**
 * Every signature of tablecast.d.ts, used as a program would; it is compiled and never run. A signature that no longer
 * fits makes the compiler refuse it, and what a line marked @ts-expect-error does must be refused.
 */

import { Client, connect, LiveChanges, LiveTable, TablecastError } from "../tablecast.js";
import type {
  Change, ConnectOptions, Key, LiveOptions, Param, Reset, Result, Retry, Row, RowChange, RowDelete, RowPut, StatementOptions,
  Status, Value, WebSocketLike,
} from "../tablecast.js";

interface Note {
  id: number;
  text: string | null;
}

const nested: Value = { list: [1, "two", null, { deep: true }] };
const params: Param[] = [1, "text", null, true, 10n, new Date(), new ArrayBuffer(2), new Uint8Array(2), nested];
const retry: Retry = { attempts: 3, firstMs: 10, maxMs: 1000 };
const live: LiveOptions = { namespace: "app" };
const statement: StatementOptions = { namespace: "app", idempotencyKey: "one", signal: new AbortController().signal };

class Socket implements WebSocketLike {
  onopen: ((event: any) => void) | null = null;
  onmessage: ((event: any) => void) | null = null;
  onclose: ((event: any) => void) | null = null;
  onerror: ((event: any) => void) | null = null;
  constructor(readonly url: string, readonly protocols: string[]) {}
  send(_data: string): void {}
  close(): void {}
}

const options: ConnectOptions = {
  user: "ann",
  password: "secret",
  token: async (refused: boolean) => (refused ? "another" : "one"),
  namespace: "app",
  retry,
  onStatus: (status: Status, error: TablecastError | null) => {
    const known: "connecting" | "connected" | "waiting" | "closed" = status;
    void [known, error?.code];
  },
  WebSocket: Socket,
  fetch: globalThis.fetch,
  times: { connectMs: 100, pingMs: 100 },
};
const withText: ConnectOptions = { token: "one" };
const withFunction: ConnectOptions = { token: () => "one" };
// @ts-expect-error a token is text, or what gives it
const withNumber: ConnectOptions = { token: 1 };

export async function statements(): Promise<void> {
  const client: Client = connect("http://localhost:8080", options);
  const same: Client = new Client(new URL("http://localhost:8080"), withText);
  const notes: Note[] = await client.query<Note>("SELECT id, text FROM notes WHERE id > ?", params, statement);
  const rows: Row[] = await client.query("SELECT 1");
  const result: Result<Note> = await client.execute<Note>("INSERT INTO notes VALUES (?, ?)", [1, "text"], statement);
  const plain: Result = await client.execute("SELECT 1");
  const told: [string[], Note[], number, string, number | null] = [
    result.columns, result.rows, result.rowCount, result.message, result.seq,
  ];
  const value: Value | undefined = rows[0]?.["id"];
  void [notes, plain, told, value, withFunction, withNumber];
  client.close();
  same.close();
  // @ts-expect-error there is no server without its address
  connect();
  // @ts-expect-error a function is no parameter
  await client.query("SELECT ?", [() => 1]);
}

export async function changes(client: Client): Promise<void> {
  const stream: LiveChanges<Note> = client.live<Note>("SELECT id, text FROM notes", [1], live);
  const untyped: LiveChanges = client.live("SELECT id FROM notes");
  for await (const change of stream) {
    take(change);
  }
  const columns: string[] = stream.columns;
  const next: IteratorResult<Change<Note>, undefined> = await stream.next();
  const last: IteratorResult<Change<Note>, undefined> = await stream.return();
  const itself: LiveChanges<Note> = stream[Symbol.asyncIterator]();
  void [columns, next, last, itself];
  untyped.close();
  // @ts-expect-error only a client makes one
  new LiveChanges();
}

function take(change: Change<Note>): void {
  if (change.op === "reset") {
    const reset: Reset = change;
    const seq: number = reset.seq;
    void seq;
    return;
  }
  const either: RowChange<Note> = change;
  const key: Key = either.key;
  void key;
  if (change.op === "delete") {
    const gone: RowDelete = change;
    const nothing: null = gone.row;
    const never: false = gone.initial;
    void [nothing, never, gone.seq];
  } else {
    const put: RowPut<Note> = change;
    const text: string | null = put.row.text;
    const facts: [number, boolean] = [put.seq, put.initial];
    void [text, facts];
  }
}

export async function tables(client: Client): Promise<void> {
  const table: LiveTable<Note> = client.liveTable<Note>("SELECT id, text FROM notes WHERE id > ?", [1], live);
  const untyped: LiveTable = client.liveTable("SELECT id FROM notes");
  const ready: LiveTable<Note> = await table.ready();
  const rows: ReadonlyMap<string, Note> = ready.rows;
  const facts: [string[], number] = [table.columns, table.seq];
  const one: Note | undefined = table.get(1);
  const two: Row | undefined = untyped.get("a", 1);
  const stop: () => void = table.onChange((told: Change<Note>[]) => told.forEach(take));
  stop();
  for await (const latest of table) {
    const size: number = latest.size;
    void size;
  }
  const ended: TablecastError | null = await table.ended;
  table.close();
  void [rows, facts, one, two, ended];
  // @ts-expect-error the rows are to be read
  table.rows.set("[1]", { id: 1, text: null });
  // @ts-expect-error only a client makes one
  new LiveTable();
}

export function failures(cause: unknown): [string, unknown, boolean] {
  const plain = new TablecastError("not_found", "there is no such table");
  const error: Error = new TablecastError("not_found", "there is no such table", { table: "notes" }, { cause });
  // @ts-expect-error a code stays what it is
  plain.code = "another";
  return [plain.code, plain.details["table"], error instanceof TablecastError && error.retryable];
}
