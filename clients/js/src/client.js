/** What a program talks to: live queries over one socket, statements over HTTP. */

import { LiveChanges } from "./changes.js";
import { Credentials } from "./credentials.js";
import { TablecastError } from "./errors.js";
import { runSql } from "./http.js";
import { LiveLink, RETRY } from "./link.js";
import { LiveTable } from "./table.js";
import { toParams } from "./values.js";

/** Nothing is sent yet: the first live query or statement finds out whether there is a server. */
export function connect(url, options = {}) {
  return new Client(url, options);
}

export class Client {
  #settings;
  #namespace;
  #link = null;
  #isClosed = false;

  constructor(url, { namespace, retry, onStatus, WebSocket, fetch, times, ...credentials }) {
    this.#namespace = namespace;
    this.#settings = {
      ...addresses(url),
      credentials: new Credentials(credentials),
      retry: { ...RETRY, ...retry },
      WebSocket: WebSocket === undefined ? globalThis.WebSocket : WebSocket,
      fetch: fetch ?? ((...request) => globalThis.fetch(...request)), // a browser's wants to be called on its window
      onStatus,
      times,
    };
  }

  /** The changes of a live query: an async iterator. */
  live(sql, params = [], { namespace = this.#namespace } = {}) {
    return new LiveChanges(this.#linked(), sql, toParams(params), namespace);
  }

  /** The rows of a live query, kept in step. */
  liveTable(sql, params = [], { namespace = this.#namespace } = {}) {
    return new LiveTable(this.#linked(), sql, toParams(params), namespace);
  }

  /** The rows of a SELECT, as objects. */
  async query(sql, params = [], options = {}) {
    return (await this.#results(sql, params, options)).at(-1).rows;
  }

  /** Any statement, or several: columns, rows, rowCount, message and seq of the last. */
  async execute(sql, params = [], options = {}) {
    return (await this.#results(sql, params, options)).at(-1);
  }

  /** Ends every live query. Idempotent. */
  close() {
    this.#isClosed = true;
    this.#link?.end();
  }

  async #results(sql, params, { namespace = this.#namespace, ...options }) {
    this.#checkOpen();
    return runSql(this.#settings, sql, toParams(params), { namespace, ...options });
  }

  /** One connection for all live queries; another one after it ended with the last of them. */
  #linked() {
    this.#checkOpen();
    if (!this.#settings.WebSocket) {
      throw new TablecastError("invalid_request", "there is no WebSocket here, as in node before 22: give one to connect");
    }
    if (this.#link === null || this.#link.isOver) this.#link = new LiveLink(this.#settings);
    return this.#link;
  }

  #checkOpen() {
    if (this.#isClosed) throw new TablecastError("database_closed", "the client is closed");
  }
}

/** A server may be below a path, behind a proxy. A page may name its own server by a path alone. */
function addresses(given) {
  const base = parsed(given);
  const path = base.pathname.replace(/\/+$/, "");
  const sqlUrl = `${base.origin}${path}/v1/api/sql`;
  return { sqlUrl, liveUrl: `${base.origin.replace(/^http/, "ws")}${path}/v1/ws` };
}

function parsed(given) {
  try {
    const url = new URL(given, globalThis.location?.href);
    if (/^https?:$/.test(url.protocol) && !url.username && !url.password) return url;
  } catch {
    // told below
  }
  throw new TablecastError("invalid_request", `${given} is not the address of a server, as http://127.0.0.1:8080`);
}
