/**
 * One live connection over a WebSocket: it signs in, then carries messages, and ends with an error.
 *
 * A page cannot send WebSocket pings, and a connection that broke without a word looks like one that has nothing to say.
 * So the server is asked now and then, and must answer. The answer also tells how far live queries have come.
 */

import { TablecastError } from "./errors.js";

export const CONNECT_MS = 10_000; // until signed in
export const PING_MS = 20_000; // between two; a server that has said nothing since the last one is gone

export class LiveSocket {
  #socket;
  #user;
  #isSignedIn = false;
  #isOver = false;
  #isAsked = false; // and nothing was heard since
  #deadline;
  #asking;

  /**
   * `user` is told, in this order: `signedIn()` once, `received(message)` for each message, `closed(error)` once. What
   * `received` throws ends the connection, and is what `closed` gets.
   */
  constructor(WebSocket, url, authenticate, user, { connectMs = CONNECT_MS, pingMs = PING_MS } = {}) {
    this.#user = user;
    this.#socket = new WebSocket(url, ["tablecast.json"]);
    this.#socket.onopen = () => this.send(authenticate);
    this.#socket.onmessage = ({ data }) => this.#received(data);
    this.#socket.onclose = ({ code, reason }) => this.end(lost(url, this.#isSignedIn, code, reason));
    this.#socket.onerror = () => {}; // `close` follows; some implementations throw if nobody listens
    this.#deadline = setTimeout(() => this.end(silent(url, connectMs)), connectMs);
    this.#asking = setInterval(() => this.#ask(url, pingMs), pingMs);
  }

  get isSignedIn() {
    return this.#isSignedIn;
  }

  send(message) {
    if (!this.#isOver) this.#socket.send(JSON.stringify(message));
  }

  /** Idempotent. */
  end(error) {
    if (this.#isOver) return;
    this.#isOver = true;
    clearTimeout(this.#deadline);
    clearInterval(this.#asking);
    this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
    this.#user.closed(error);
  }

  #received(data) {
    this.#isAsked = false;
    try {
      this.#told(parsed(data));
    } catch (error) {
      this.end(error);
    }
  }

  #told(message) {
    if (message.type !== "auth_ok") return this.#user.received(message);
    clearTimeout(this.#deadline);
    this.#isSignedIn = true;
    this.#user.signedIn();
  }

  #ask(url, pingMs) {
    if (!this.#isSignedIn) return; // there is a deadline for that
    if (this.#isAsked) return this.end(silent(url, pingMs));
    this.#isAsked = true;
    this.send({ type: "ping" });
  }
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch (cause) {
    throw new TablecastError("corrupt_data", `a message of the server is not JSON: ${cause.message}`, {}, { cause });
  }
}

/** A browser does not say why it could not connect, so the likely reasons are named. */
function lost(url, wasSignedIn, code, reason) {
  const said = reason ? `${code}, ${reason}` : `${code}`;
  const why = wasSignedIn
    ? `the connection was lost (${said})`
    : `there is no server, or it refuses pages of this origin: see its setting allowed_origins (${said})`;
  return new TablecastError("unreachable", `${url} cannot be reached for live queries: ${why}`, { url, code });
}

function silent(url, ms) {
  const message = `${url} cannot be reached for live queries: it said nothing for ${ms / 1000} s`;
  return new TablecastError("unreachable", message, { url });
}
