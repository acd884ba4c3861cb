/**
 * Rows that keep themselves in step, as signals: the product's own live queries through its JavaScript client.
 *
 * All of the console's live queries share one connection. A page is painted at most once per animation frame, however
 * many commits arrive in between; `live_window.ts` is for results of any size and speed.
 */

import { signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { connect, type Client, type LiveTable, type Param, type Row, type Status } from "tablecast";
import { ApiError, asApiError } from "./errors.ts";
import { SERVER } from "./http.ts";
import { accessToken } from "./session.ts";

/** `loading` until the rows are there; `ended` with the error, when the server ended it. */
export type LiveState = { is: "loading" | "live" } | { is: "ended"; error: ApiError };

export interface LiveRows<T> {
  rows: ReadonlySignal<T[]>;
  state: ReadonlySignal<LiveState>;
  close(): void;
}

/** How the connection of the live queries is, for a line that says "offline". `closed` also before the first of them. */
export const connection = signal<Status>("closed");

let client: Client | null = null;

export function liveClient(): Client {
  client ??= connect(SERVER, { token: accessToken, onStatus: (status) => (connection.value = status) });
  return client;
}

/** At sign-out: ends all live queries, and forgets whose they were. */
export function closeLive(): void {
  client?.close();
  client = null;
}

/** Calls `paint` in the next frame, once for all that asked before it. Frames of hidden pages wait. */
export function oncePerFrame(paint: () => void): { ask(): void; cancel(): void } {
  let frame = 0;
  const run = () => {
    frame = 0;
    paint();
  };
  return {
    ask: () => void (frame ||= requestAnimationFrame(run)),
    cancel: () => cancelAnimationFrame(frame),
  };
}

export function liveRows<T = Row>(sql: string, params: Param[] = []): LiveRows<T> {
  const rows = signal<T[]>([]);
  const state = signal<LiveState>({ is: "loading" });
  const table = liveClient().liveTable<T>(sql, params);
  const frame = oncePerFrame(() => show(table, rows, state));
  table.onChange(frame.ask);
  table.ended.then((error) => {
    frame.cancel();
    if (error !== null) state.value = { is: "ended", error: asApiError(error) };
  });
  const close = () => {
    frame.cancel();
    table.close();
  };
  return { rows, state, close };
}

function show<T>(table: LiveTable<T>, rows: Signal<T[]>, state: Signal<LiveState>): void {
  rows.value = [...table.rows.values()];
  if (state.peek().is === "loading") state.value = { is: "live" };
}

/** A live query as long as the component is there; another one when its text or parameters are others. */
export function useLiveRows<T = Row>(sql: string, params: Param[] = []): LiveRows<T> {
  const query = JSON.stringify([sql, params]);
  const live = useMemo(() => liveRows<T>(sql, params), [query]);
  useEffect(() => live.close, [live]);
  return live;
}

/** Both are there, or nothing is: for queries that a role may not ask. */
export function useLiveRowsIf<T = Row>(isAllowed: boolean, sql: string, params: Param[] = []): LiveRows<T> | null {
  const query = isAllowed ? JSON.stringify([sql, params]) : null;
  const live = useMemo(() => (isAllowed ? liveRows<T>(sql, params) : null), [query]);
  useEffect(() => live?.close, [live]);
  return live;
}
