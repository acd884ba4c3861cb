/** Live queries of tablecast for browsers and node. README.md is the guide. */

/** Values as JSON carries them: BIGINT and DECIMAL are text, BYTES base64, times ISO 8601, JSON columns what they are. */
export type Value = string | number | boolean | null | Value[] | { [name: string]: Value };

/** For a `?` of a statement. Bytes may be given as they are. */
export type Param = Value | bigint | Date | ArrayBuffer | ArrayBufferView;

/** A row by column name. */
export type Row = { [column: string]: Value };

/** The values of a row's primary key, in the order of its columns. */
export type Key = Value[];

export interface RowPut<R = Row> {
  op: "insert" | "update";
  key: Key;
  row: R;
  /** The commit that did it, or at which an initial row was read. */
  seq: number;
  /** One of the rows that were there when the live query began. */
  initial: boolean;
}

export interface RowDelete {
  op: "delete";
  key: Key;
  row: null;
  seq: number;
  initial: false;
}

/** Forget all rows: the server no longer knows what changed meanwhile. Those that are there now follow. */
export interface Reset {
  op: "reset";
  seq: number;
}

export type RowChange<R = Row> = RowPut<R> | RowDelete;
export type Change<R = Row> = RowChange<R> | Reset;

/** `connected`: signed in. `waiting`: lost, and tried again soon. `closed`: the last live query has ended. */
export type Status = "connecting" | "connected" | "waiting" | "closed";

export interface Retry {
  /** How often in a row it may fail; by default there is no end to it. */
  attempts?: number;
  /** The first wait; each further one is twice as long. */
  firstMs?: number;
  maxMs?: number;
}

/** What `new WebSocket(url, protocols)` needs to be. */
export interface WebSocketLike {
  onopen: ((event: any) => void) | null;
  onmessage: ((event: any) => void) | null;
  onclose: ((event: any) => void) | null;
  onerror: ((event: any) => void) | null;
  send(data: string): void;
  close(): void;
}

export interface ConnectOptions {
  user?: string;
  password?: string;
  /** An access token, or a function that gives one; `refused` says that the last one was not taken. */
  token?: string | ((refused: boolean) => string | Promise<string>);
  /** Where names without a namespace are looked up. */
  namespace?: string;
  retry?: Retry;
  /** Hears how the connection of the live queries is. */
  onStatus?: (status: Status, error: TablecastError | null) => void;
  /** For where there is none, as node before 22. */
  WebSocket?: new (url: string, protocols: string[]) => WebSocketLike;
  fetch?: typeof globalThis.fetch;
  times?: { connectMs?: number; pingMs?: number };
}

export interface LiveOptions {
  namespace?: string;
}

export interface StatementOptions {
  namespace?: string;
  /** A statement sent again with the same key is done once. */
  idempotencyKey?: string;
  signal?: AbortSignal;
}

export interface Result<R = Row> {
  columns: string[];
  rows: R[];
  rowCount: number;
  message: string;
  /** The commit that a write became. */
  seq: number | null;
}

/** Nothing is sent yet: the first live query or statement finds out whether there is a server. */
export function connect(url: string | URL, options: ConnectOptions): Client;

export class Client {
  constructor(url: string | URL, options: ConnectOptions);

  /** The changes of a live query, one by one: the rows that are there, then what changes. */
  live<R = Row>(sql: string, params?: Param[], options?: LiveOptions): LiveChanges<R>;

  /** The rows of a live query, kept in step. */
  liveTable<R = Row>(sql: string, params?: Param[], options?: LiveOptions): LiveTable<R>;

  /** The rows of a SELECT. */
  query<R = Row>(sql: string, params?: Param[], options?: StatementOptions): Promise<R[]>;

  /** Any statement, or several: the result of the last. */
  execute<R = Row>(sql: string, params?: Param[], options?: StatementOptions): Promise<Result<R>>;

  /** Ends every live query. Idempotent. */
  close(): void;
}

/** Made by `client.live`. `break`, `return` and `close` end the subscription. */
export class LiveChanges<R = Row> implements AsyncIterableIterator<Change<R>> {
  private constructor();

  /** Names of the selected columns; known with the first change. */
  readonly columns: string[];

  next(): Promise<IteratorResult<Change<R>, undefined>>;
  return(value?: undefined): Promise<IteratorResult<Change<R>, undefined>>;
  [Symbol.asyncIterator](): this;

  /** Ends the subscription, and an iteration that waits. Idempotent. */
  close(): void;
}

/** Made by `client.liveTable`. */
export class LiveTable<R = Row> implements AsyncIterable<ReadonlyMap<string, R>> {
  private constructor();

  /** Names of the selected columns; known when it is ready. */
  readonly columns: string[];

  /** Rows by the JSON text of their key, as `[1]`. The map stays as it is: read `rows` again for newer ones. */
  readonly rows: ReadonlyMap<string, R>;

  /** The commit that last changed the rows. */
  readonly seq: number;

  /** Settles when the table is over: with null if it was closed, else with the error that ended it. */
  readonly ended: Promise<TablecastError | null>;

  /** The row with this key, given value by value. */
  get(...key: Key): R | undefined;

  /** Resolves when the rows are there. */
  ready(): Promise<this>;

  /**
   * Called after each commit with its changes, when they are in `rows`. One reset stands for rows that were loaded
   * as a whole: the first time, or again. Returns how to stop that.
   */
  onChange(listener: (changes: Change<R>[]) => void): () => void;

  /** The rows when they are ready, and again whenever they have changed. Who is slow gets the latest only. */
  [Symbol.asyncIterator](): AsyncGenerator<ReadonlyMap<string, R>, void, undefined>;

  /** Ends the subscription. The rows stay as they are. Idempotent. */
  close(): void;
}

export class TablecastError extends Error {
  constructor(code: string, message: string, details?: { [name: string]: unknown }, options?: { cause?: unknown });

  /** Stable: programs match on it. */
  readonly code: string;
  readonly details: { [name: string]: any };

  /** Whether the same may succeed later. */
  readonly retryable: boolean;
}
