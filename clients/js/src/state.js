/**
 * The client's side of live queries, without I/O: messages of the server in, steps for readers and messages to send out.
 *
 * One LiveState outlives connections. Each query of it is in one of these states:
 *
 *   state     meaning                                    left by
 *   away      nobody serves it                           a connection: `subscribe` is sent        → asked
 *                                                        the same, if its reader is too slow      → behind
 *   asked     `subscribe` was sent                       `subscribed`: snapshot, refetch          → rows
 *                                                        `subscribed`: resumed                    → joining
 *                                                        the same, with other columns             → away, without resume
 *   rows      its rows come, batch by batch              the last batch                           → joining
 *   joining   the rows are there, changes are to come    `live`                                   → live
 *   live      every commit that matters is told          its reader is too slow                   → behind
 *   behind    out of it until its reader has read all    the reader took the last step            → away
 *   refused   for now: the server has too much to do     `askAgain`                               → away
 *   ended     refused by the server, or closed
 *
 *   joining, live          `lagging`                                                              → away
 *   asked to live          the connection is lost                                                 → away
 *                          error `schema_changed`                                                 → away, without resume
 *                          an error that passes                                                   → refused
 *
 * A query whose rows were whole once is resumed from the last commit that it was told; one whose rows were still coming,
 * or whose table has other columns now, starts again, and its reader is told to forget what it has.
 *
 * A reader is never waited for: the queries of a client share a connection, and one that is not read must not hold up
 * the others. When its queue is full it stops asking for batches of rows, or leaves the fan-out and resumes when its
 * reader has caught up: memory is bounded, and nothing is lost, since resuming tells the net difference.
 */

import { TablecastError } from "./errors.js";
import { StepQueue } from "./queue.js";
import { Shape } from "./shape.js";

export const MAX_MESSAGE_BYTES = 65_536; // the server takes no larger one, and would end the connection of all queries
const MAX_HISTORY_CHARS = 64; // as the server's

const AWAY = "away";
const ASKED = "asked";
const ROWS = "rows";
const JOINING = "joining";
const LIVE = "live";
const BEHIND = "behind";
export const REFUSED = "refused";
export const ENDED = "ended";
const UNSERVED = [AWAY, BEHIND, REFUSED];

/** One live query, and what its reader has not read yet. */
class Query {
  state = AWAY;
  channel = null; // whose changes are for it
  shape = new Shape([]);
  history = null; // that its commit numbers are of
  wantsBatch = false; // of rows, when there is room
  refusals = 0; // since it was live
  error = null;

  constructor(id, sql, params, namespace, maxQueued) {
    Object.assign(this, { id, sql, params, namespace });
    this.steps = new StepQueue(maxQueued);
  }

  get request() {
    const { id, sql, params, namespace } = this;
    const { resume } = this.steps;
    return { type: "subscribe", id, sql, params, namespace, resume, history: resume === null ? null : this.history };
  }
}

/** The live queries of one client. After every call there may be something in `messagesToSend`. */
export class LiveState {
  #number = 0;
  #queries = new Map(); // by id
  #channels = new Map(); // channel → Set of queries
  #toSend = [];
  #isConnected = false;
  #maxQueued;

  /** A query became live since whoever reads this last cleared it. */
  hasProgress = false;

  /** `maxQueued`: changes that a reader may leave unread. */
  constructor(maxQueued = undefined) {
    this.#maxQueued = maxQueued;
  }

  get queries() {
    return [...this.#queries.values()];
  }

  /** Each message is given out once. */
  messagesToSend() {
    const messages = this.#toSend;
    this.#toSend = [];
    return messages;
  }

  // --- what readers do ---

  open(sql, params, namespace) {
    const query = new Query(++this.#number, sql, params, namespace, this.#maxQueued);
    checkSize(query);
    this.#queries.set(query.id, query);
    this.#ask(query);
    return query;
  }

  /** The oldest step that is queued. There must be one. */
  take(query) {
    const step = query.steps.take();
    if (query.state === ROWS) this.#pull(query);
    if (query.state === BEHIND && query.steps.length === 0) this.#return(query);
    return step;
  }

  /** After a refusal, when a while has passed. */
  askAgain(query) {
    if (query.state === REFUSED) this.#return(query);
  }

  /** Its reader is gone, or is not to wait any longer. Idempotent. */
  close(query, error = null) {
    if (query.state === ENDED) return;
    this.#unsubscribe(query);
    this.#end(query, error);
  }

  // --- what the connection does ---

  /** Signed in: everything asks for its place again. */
  connected() {
    this.#isConnected = true;
    for (const query of this.#queries.values()) this.#ask(query);
  }

  disconnected() {
    this.#isConnected = false;
    this.#toSend = [];
    this.#channels.clear();
    for (const query of this.#queries.values()) {
      query.channel = null;
      if (!UNSERVED.includes(query.state)) query.state = AWAY;
    }
  }

  /** There will be no further connection. Without an error everything ends as if its reader had closed it. */
  fail(error) {
    this.#isConnected = false;
    this.#toSend = [];
    for (const query of this.queries) this.#end(query, error);
  }

  /** The queries that now have something for their readers. Throws what the server said of the whole connection. */
  received(message) {
    switch (message.type) {
      case "change":
        return this.#change(message);
      case "error":
        return this.#error(message);
      case "pong":
        return this.#reach(message.seq);
      case "subscribed":
      case "rows":
      case "live":
      case "lagging": {
        const query = this.#queries.get(message.id);
        if (query === undefined) return []; // closed while this was on its way
        this.#told(query, message);
        return [query];
      }
      default: // an answer that nobody waits for, or a message of a newer server
        return [];
    }
  }

  // --- messages ---

  #told(query, message) {
    switch (message.type) {
      case "subscribed":
        expect(query, message, ASKED);
        return this.#subscribed(query, message);
      case "rows":
        expect(query, message, ROWS);
        return this.#rows(query, message);
      case "live":
        expect(query, message, JOINING);
        return this.#live(query, message);
      case "lagging":
        expect(query, message, JOINING, LIVE);
        query.steps.reach(message.seq);
        return this.#return(query);
    }
  }

  #subscribed(query, message) {
    const shape = new Shape(message.schema, message.key);
    if (message.mode !== "resumed") {
      query.shape = shape;
      query.history = message.history;
      query.steps.startOver(message.seq);
      query.state = ROWS;
      query.wantsBatch = false; // the first batch comes unasked
    } else if (query.steps.resume === null) {
      throw new TablecastError("corrupt_data", "the server resumes a live query that was not asked to be");
    } else if (shape.identity === query.shape.identity) {
      query.state = JOINING;
    } else {
      this.#unsubscribe(query);
      this.#renumber(query);
      this.#startAgain(query);
    }
  }

  #rows(query, { rows, seq, last }) {
    const { shape } = query;
    const changes = rows.map((row) => ({ op: "insert", key: shape.key(row), row: shape.row(row), seq, initial: true }));
    query.steps.put({ changes, seq, whole: last });
    if (last) {
      query.state = JOINING;
    } else {
      query.wantsBatch = true;
      this.#pull(query);
    }
  }

  #live(query, message) {
    query.steps.put(stepOf(query, message));
    query.state = LIVE;
    query.refusals = 0;
    query.channel = message.channel;
    if (!this.#channels.has(message.channel)) this.#channels.set(message.channel, new Set());
    this.#channels.get(message.channel).add(query);
    this.hasProgress = true;
  }

  #change(message) {
    const told = [];
    for (const query of [...(this.#channels.get(message.channel) ?? [])]) {
      if (message.seq <= query.steps.seq) continue; // two queries may share a channel, and one came later
      if (query.steps.hasRoom(message.changes.length)) {
        query.steps.put(stepOf(query, message));
        told.push(query);
      } else {
        this.#fallBehind(query);
      }
    }
    return told;
  }

  /** Whatever is live was told everything up to this commit: one that is seldom told anything can resume from here. */
  #reach(seq) {
    for (const query of this.#queries.values()) if (query.state === LIVE) query.steps.reach(seq);
    return [];
  }

  #error({ id, code, message, details }) {
    const error = new TablecastError(code, message, details);
    if (id === undefined || id === null) throw error;
    const query = this.#queries.get(id);
    if (query === undefined) return [];
    if (code === "schema_changed") {
      this.#startAgain(query);
      return [];
    }
    if (error.retryable && code !== "too_many_requests") this.#refuse(query, error);
    else this.#end(query, error); // also if this connection has all the live queries it may: waiting would not help
    return [query];
  }

  // --- moves ---

  #ask(query) {
    if (!this.#isConnected || query.state !== AWAY) return;
    if (query.steps.hasRoom()) {
      query.state = ASKED;
      this.#toSend.push(query.request);
    } else {
      query.state = BEHIND; // what it resumes to may be large
    }
  }

  #return(query) {
    this.#leaveChannel(query);
    query.state = AWAY;
    query.error = null;
    this.#ask(query);
  }

  #startAgain(query) {
    query.steps.resume = null;
    this.#return(query);
  }

  #refuse(query, error) {
    this.#leaveChannel(query);
    query.state = REFUSED;
    query.error = error;
    query.refusals += 1;
  }

  #pull(query) {
    if (!query.wantsBatch || !query.steps.hasRoom()) return;
    query.wantsBatch = false;
    this.#toSend.push({ type: "next_batch", id: query.id });
  }

  #fallBehind(query) {
    this.#unsubscribe(query);
    this.#renumber(query);
    query.state = BEHIND;
  }

  /** Messages of the old number may still be on their way. */
  #renumber(query) {
    this.#queries.delete(query.id);
    query.id = ++this.#number;
    this.#queries.set(query.id, query);
  }

  #unsubscribe(query) {
    this.#leaveChannel(query);
    if (this.#isConnected && !UNSERVED.includes(query.state)) {
      this.#toSend.push({ type: "unsubscribe", id: query.id });
    }
  }

  #leaveChannel(query) {
    const members = this.#channels.get(query.channel);
    members?.delete(query);
    if (members?.size === 0) this.#channels.delete(query.channel);
    query.channel = null;
  }

  /** With an error its reader still gets what is queued; without, it has gone. */
  #end(query, error) {
    this.#leaveChannel(query);
    this.#queries.delete(query.id);
    query.state = ENDED;
    query.error = error;
    if (error === null) query.steps.clear();
  }
}

function stepOf({ shape }, { changes, seq }) {
  return { changes: changes.map((change) => changeOf(shape, change, seq)), seq, whole: true };
}

function changeOf(shape, { op, row, key }, seq) {
  if (op === "delete") return { op, key, row: null, seq, initial: false };
  return { op, key: shape.key(row), row: shape.row(row), seq, initial: false };
}

function expect(query, message, ...states) {
  if (states.includes(query.state)) return;
  throw new TablecastError("corrupt_data", `the server said ${message.type} of a live query that is ${query.state}`);
}

function checkSize(query) {
  const [number, history] = [Number.MAX_SAFE_INTEGER, "x".repeat(MAX_HISTORY_CHARS)];
  const longest = { ...query.request, id: number, resume: number, history };
  const size = new TextEncoder().encode(JSON.stringify(longest)).length;
  if (size <= MAX_MESSAGE_BYTES) return;
  throw new TablecastError(
    "too_large",
    `a live query and its parameters may have ${MAX_MESSAGE_BYTES} bytes; this has ${size}`,
    { size, limit: MAX_MESSAGE_BYTES },
  );
}
