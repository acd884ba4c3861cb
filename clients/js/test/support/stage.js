/** What a test plays on, in a page and in node alike: the client, and a way to wait for what a live table holds. */

import * as tablecast from "../../src/index.js";

const kept = {}; // what a test made and looks at again

/** Resolves when `isSo(table)`; whatever ends the table before rejects. */
async function until(table, isSo) {
  for await (const _ of table) if (isSo(table)) return table.seq;
  throw new Error("the live table was closed");
}

/** The rows of a live table as arrays, in the order of its columns. */
function rowsOf(table) {
  return [...table.rows.values()].map((row) => table.columns.map((name) => row[name]));
}

/** A live table whose statuses and changes are written down. */
function watched(name, url, options, sql, params) {
  const one = { statuses: [], told: [] };
  const onStatus = (status, error) => one.statuses.push(error ? `${status}: ${error.code}` : status);
  one.client = tablecast.connect(url, { ...options, onStatus });
  one.table = one.client.liveTable(sql, params);
  one.table.onChange((changes) => one.told.push(...changes));
  kept[name] = one;
  return one;
}

Object.assign(globalThis, { tablecast, kept, until, rowsOf, watched });
