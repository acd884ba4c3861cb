/**
 * Whatever happens between a server and a client, in the end every reader has the server's rows: random runs of the core
 * against a model of the server. Readers are slow at random, and their queues small.
 */

import assert from "node:assert/strict";
import { test } from "node:test";

import { LiveRows } from "../src/rows.js";
import { ENDED, LiveState } from "../src/state.js";
import { ModelServer, QUERIES } from "./support/model_server.js";
import { Chance } from "./support/random.js";

const RUNS = Number(process.env.TABLECAST_JS_RUNS ?? 300);
const STEPS = 120;
const MAX_QUEUED = 12; // changes: a reader that leaves a few commits unread falls behind
const MAX_COMMIT_ROWS = 30; // more than a queue takes, unless it is empty

const EVENTS = [
  ...["snapshot", "resumed", "refetch", "rows", "live", "change", "lagging", "pong"],
  ...["schema_changed", "overloaded", "behind", "restored"],
];

class Run {
  #chance;
  #server = new ModelServer();
  #state = new LiveState(MAX_QUEUED);
  #readers = []; // {query, rows, sql}
  #isConnected = false;
  seen = new Set(); // what happened at all, over the run

  constructor(seed) {
    this.#chance = new Chance(seed);
  }

  play() {
    for (let step = 0; step < STEPS; step += 1) this.#move();
    this.#settle();
    this.#check();
    for (const { query } of this.#readers) this.#state.close(query);
    this.#exchange();
    assert.equal(this.#server.subscriptions, 0, "the server serves nobody that has gone");
  }

  #move() {
    const moves = [
      [30, () => this.#commit(1 + this.#chance.below(5))],
      [3, () => this.#commit(1 + this.#chance.below(MAX_COMMIT_ROWS))],
      [20, () => this.#read(this.#chance.below(6))],
      [30, () => this.#deliver(1 + this.#chance.below(8))],
      [3, () => this.#open()],
      [1, () => this.#close()],
      [3, () => (this.#isConnected ? this.#disconnect() : this.#connect())],
      [4, () => this.#connect()],
      [2, () => this.#server.lag()],
      [1, () => this.#server.forget()],
      [1, () => this.#server.alter()],
      [1, () => this.#server.refuse()],
      [3, () => this.#server.received({ type: "ping" })],
      [1, () => this.#restore()],
      [5, () => this.#askAgain()],
    ];
    let at = this.#chance.below(moves.reduce((sum, [weight]) => sum + weight, 0));
    const [, move] = moves.find(([weight]) => (at -= weight) < 0);
    move();
    this.#send();
  }

  #commit(count) {
    const write = () => [this.#chance.below(count * 2), this.#chance.happens(0.3) ? null : `t${this.#chance.below(1000)}`];
    this.#server.commit(Array.from({ length: count }, write));
  }

  #open() {
    const sql = QUERIES[this.#chance.below(QUERIES.length)];
    this.#readers.push({ sql, query: this.#state.open(sql, [], null), rows: new LiveRows() });
  }

  #close() {
    const [reader] = this.#readers.splice(this.#chance.below(this.#readers.length), 1);
    if (reader) this.#state.close(reader.query);
  }

  #connect() {
    if (this.#isConnected) return;
    this.#isConnected = true;
    this.#state.connected();
  }

  #disconnect() {
    this.#isConnected = false;
    this.#server.disconnect();
    this.#state.disconnected();
  }

  #restore() {
    if (this.#isConnected) this.#disconnect();
    this.#server.restore([...this.#server.rows].filter(() => this.#chance.happens(0.5)));
    this.seen.add("restored");
  }

  #askAgain() {
    for (const { query } of this.#readers) this.#state.askAgain(query);
  }

  #send() {
    const messages = this.#state.messagesToSend();
    if (messages.length > 0) assert.ok(this.#isConnected, "nothing is said without a connection");
    for (const message of messages) this.#server.received(message);
  }

  #deliver(count) {
    if (!this.#isConnected) return;
    for (const message of this.#server.outgoing.splice(0, count)) {
      this.seen.add(message.mode ?? message.code ?? message.type);
      this.#state.received(message);
      this.#send();
    }
  }

  #read(count) {
    for (const { query, rows } of this.#readers) {
      if (query.state === "behind") this.seen.add("behind");
      for (let n = 0; n < count && query.steps.length > 0; n += 1) rows.fold(this.#state.take(query));
      this.#send();
    }
  }

  #exchange() {
    this.#send();
    while (this.#server.outgoing.length > 0) this.#deliver(1);
  }

  /** Connected, all delivered, all read, again and again until nothing is left. */
  #settle() {
    this.#connect();
    do {
      this.#exchange();
      this.#askAgain();
      this.#read(Infinity);
      this.#send();
    } while (this.#server.outgoing.length > 0);
  }

  #check() {
    for (const { query, rows, sql } of this.#readers) {
      assert.notEqual(query.state, ENDED);
      const { version } = this.#server;
      const expected = [...this.#server.rows].map(([id, text]) => [`[${id}]`, rowOf(sql, id, text, version)]);
      assert.deepEqual(new Map([...rows.given()].sort()), new Map(expected.sort()), sql);
    }
  }
}

function rowOf(sql, id, text, version) {
  if (sql === "SELECT text FROM notes") return { text };
  const more = sql.includes("*") ? Array.from({ length: version }, (_, n) => [`more_${n}`, null]) : [];
  return { id, text, ...Object.fromEntries(more) };
}

test(`every reader ends with the server's rows, in ${RUNS} random runs`, () => {
  const seen = new Set();
  for (let seed = 1; seed <= RUNS; seed += 1) {
    const run = new Run(seed);
    try {
      run.play();
    } catch (error) {
      error.message = `seed ${seed}: ${error.message}`;
      throw error;
    }
    for (const event of run.seen) seen.add(event);
  }
  for (const event of EVENTS) {
    assert.ok(seen.has(event), `no run had ${event}: the test proves less than it says`);
  }
});
