/**
 * The live queries of one client over one connection, which lives as long as one of them does.
 *
 * When the connection is lost it waits, longer each time, and makes another, on which everything is resumed. Credentials
 * that ended are renewed on the way. When the server refuses for good, every query ends with the error.
 */

import { TablecastError, callBack } from "./errors.js";
import { LiveSocket } from "./socket.js";
import { ENDED, LiveState, REFUSED } from "./state.js";

/** How often a connection is tried, and how long to wait in between. */
export const RETRY = { attempts: Infinity, firstMs: 100, maxMs: 10_000 };

/** Shortened at random by up to half: clients that lost a server together do not come back together. */
export function waitMs(attempt, { firstMs, maxMs }, random = Math.random) {
  return Math.min(maxMs, firstMs * 2 ** attempt) * (1 - random() / 2);
}

export class LiveLink {
  #settings;
  #state = new LiveState();
  #readers = new Map(); // query → its reader
  #socket = null;
  #wake = () => {}; // ends a wait between two attempts
  #postponed = new Set(); // timers of queries that were refused for now
  #tried = 0; // attempts since a query was live
  #isRefused = false; // the last credentials were
  #error = null; // that ended all

  /** Nothing is opened any more: the last query ended, or the server refused for good. */
  isOver = false;

  /** `settings`: liveUrl, WebSocket, credentials, retry, onStatus, times. */
  constructor(settings) {
    this.#settings = settings;
  }

  // --- queries ---

  /** `reader.arrived()` is called whenever there may be something for `take`, or the query has ended. */
  open(sql, params, namespace, reader) {
    const isFirst = this.#readers.size === 0;
    const query = this.#state.open(sql, params, namespace);
    this.#readers.set(query, reader);
    if (isFirst) this.#keepConnected();
    this.#flush();
    return query;
  }

  take(query) {
    const step = this.#state.take(query);
    this.#flush();
    return step;
  }

  /** Idempotent. */
  close(query, error = null) {
    this.#state.close(query, error);
    this.#flush();
    this.#tell(query);
  }

  /** Ends all: with the error, or as if each was closed. */
  end(error = null) {
    const { queries } = this.#state;
    this.#error = error;
    this.#state.fail(error);
    for (const query of queries) this.#tell(query);
  }

  #tell(query) {
    const reader = this.#readers.get(query);
    if (query.state === ENDED) this.#readers.delete(query);
    reader?.arrived();
    if (this.#readers.size === 0) this.#finish();
  }

  #finish() {
    if (this.isOver) return;
    this.isOver = true;
    this.#socket?.end(null);
    this.#wake();
    for (const timer of this.#postponed) clearTimeout(timer);
    this.#report("closed", this.#error);
  }

  #flush() {
    for (const message of this.#state.messagesToSend()) this.#socket.send(message);
  }

  #report(status, error = null) {
    if (this.#settings.onStatus) callBack(this.#settings.onStatus, status, error);
  }

  // --- the connection ---

  async #keepConnected() {
    while (!this.isOver) {
      this.#report("connecting");
      const error = await this.#connection();
      if (!this.isOver) await this.#lost(asOurs(error));
    }
  }

  /** One connection, from its beginning to the error that ends it. */
  async #connection() {
    const { WebSocket, liveUrl, credentials, times } = this.#settings;
    try {
      const authenticate = await credentials.message(this.#isRefused);
      if (this.isOver) return null;
      return await new Promise((closed) => {
        const user = { signedIn: () => this.#signedIn(), received: (message) => this.#received(message), closed };
        this.#socket = new LiveSocket(WebSocket, liveUrl, authenticate, user, times);
      });
    } catch (error) {
      return error;
    }
  }

  #signedIn() {
    this.#isRefused = false;
    this.#state.connected();
    this.#flush();
    this.#report("connected");
  }

  #received(message) {
    const told = this.#state.received(message);
    this.#flush();
    for (const query of told) query.state === REFUSED ? this.#postpone(query) : this.#tell(query);
  }

  /** The others go on; this one is asked for again after a while. */
  #postpone(query) {
    const { retry } = this.#settings;
    if (query.refusals >= retry.attempts) return this.close(query, query.error);
    const timer = setTimeout(() => {
      this.#postponed.delete(timer);
      this.#state.askAgain(query);
      this.#flush();
    }, waitMs(query.refusals - 1, retry));
    this.#postponed.add(timer);
  }

  async #lost(error) {
    const wasSignedIn = this.#socket?.isSignedIn ?? false;
    this.#socket = null;
    this.#state.disconnected();
    if (this.#state.hasProgress) this.#tried = 0;
    this.#state.hasProgress = false;
    if (error.code === "unauthenticated" && !wasSignedIn) return this.#refused(error);
    const passes = error.retryable || error.code === "unauthenticated"; // a token that was good has ended
    if (!passes || ++this.#tried >= this.#settings.retry.attempts) return this.end(error);
    this.#report("waiting", error);
    return this.#wait(waitMs(this.#tried - 1, this.#settings.retry));
  }

  /** A function that gives tokens may have kept one for too long: it is asked once more. */
  #refused(error) {
    if (this.#isRefused || !this.#settings.credentials.canRenew) return this.end(error);
    this.#isRefused = true;
  }

  #wait(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** What is no error of ours is a mistake, or a WebSocket that refuses its address: no reader may wait for ever. */
function asOurs(error) {
  if (error instanceof TablecastError) return error;
  return new TablecastError("database_error", `live queries ended: ${error?.message ?? error}`, {}, { cause: error });
}
