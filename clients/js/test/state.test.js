/** The core, message by message: what it says, and what readers get. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { TablecastError } from "../src/errors.js";
import { ENDED, LiveState, MAX_MESSAGE_BYTES, REFUSED } from "../src/state.js";

const SQL = "SELECT text FROM notes";
const SCHEMA = [
  { name: "text", type: "TEXT" },
  { name: "id", type: "INT", hidden: true },
];

function subscribed(id, seq, mode, schema = SCHEMA) {
  return { type: "subscribed", id, seq, history: "h1", mode, schema, key: [1] };
}

function rows(id, seq, values, last = true) {
  return { type: "rows", id, seq, rows: values, last };
}

function live(id, seq, changes = [], channel = 7) {
  return { type: "live", id, channel, seq, changes };
}

function change(seq, changes, channel = 7) {
  return { type: "change", channel, seq, changes };
}

const put = (op, id, text) => ({ op, row: [text, id] });

/** A state with one query that is live at commit 5, and read; one row. */
function liveAtFive(maxQueued) {
  const state = new LiveState(maxQueued);
  const query = state.open(SQL, [1], "app");
  state.connected();
  state.messagesToSend();
  for (const message of [subscribed(1, 5, "snapshot"), rows(1, 5, [["a", 1]]), live(1, 5)]) state.received(message);
  drain(state, query);
  return { state, query };
}

function drain(state, query) {
  const changes = [];
  while (query.steps.length > 0) changes.push(...state.take(query).changes);
  return changes;
}

function types(messages) {
  return messages.map(({ type }) => type);
}

test("rows are objects without the hidden key, and say that they are initial", () => {
  const state = new LiveState();
  const query = state.open(SQL, [], null);
  assert.deepEqual(state.messagesToSend(), [], "there is no connection yet");
  state.connected();
  assert.deepEqual(state.messagesToSend(), [
    { type: "subscribe", id: 1, sql: SQL, params: [], namespace: null, resume: null, history: null },
  ]);
  state.received(subscribed(1, 5, "snapshot"));
  assert.deepEqual(query.shape.columns, ["text"]);
  state.received(rows(1, 5, [["a", 1]], false));
  assert.deepEqual(state.messagesToSend(), [{ type: "next_batch", id: 1 }]);
  assert.equal(query.steps.resume, null, "rows are missing");
  state.received(rows(1, 5, [["b", 2]]));
  assert.equal(query.steps.resume, 5);
  state.received(live(1, 6, [put("insert", 3, "c"), { op: "delete", key: [1] }]));
  assert.deepEqual(drain(state, query), [
    { op: "insert", key: [1], row: { text: "a" }, seq: 5, initial: true },
    { op: "insert", key: [2], row: { text: "b" }, seq: 5, initial: true },
    { op: "insert", key: [3], row: { text: "c" }, seq: 6, initial: false },
    { op: "delete", key: [1], row: null, seq: 6, initial: false },
  ]);
});

test("a lost connection is resumed from the last commit that was told", () => {
  const { state, query } = liveAtFive();
  state.received(change(8, [put("update", 1, "b")]));
  state.disconnected();
  assert.deepEqual(state.messagesToSend(), []);
  state.connected();
  const [again] = state.messagesToSend();
  assert.deepEqual([again.resume, again.history], [8, "h1"]);
  state.received(subscribed(1, 8, "resumed"));
  state.received(live(1, 9, [put("update", 1, "c")]));
  assert.deepEqual(drain(state, query).map(({ op, seq }) => [op, seq]), [["update", 8], ["update", 9]]);
});

test("rows that were not all there are not resumed from", () => {
  const state = new LiveState();
  const query = state.open(SQL, [], null);
  state.connected();
  state.received(subscribed(1, 5, "snapshot"));
  state.received(rows(1, 5, [["a", 1]], false));
  state.disconnected();
  state.messagesToSend();
  state.connected();
  assert.equal(state.messagesToSend()[0].resume, null);
  state.received(subscribed(1, 6, "snapshot"));
  state.received(rows(1, 6, [["b", 2]]));
  assert.deepEqual(drain(state, query).map(({ op }) => op), ["insert", "reset", "insert"]);
});

test("history that is gone is a reset, and all rows again", () => {
  const { state, query } = liveAtFive();
  state.disconnected();
  state.connected();
  state.received(subscribed(1, 90, "refetch"));
  state.received(rows(1, 90, [["z", 9]]));
  const [reset, row] = drain(state, query);
  assert.deepEqual(reset, { op: "reset", seq: 90 });
  assert.equal(row.initial, true);
});

test("lagging subscribes again from where it says, under the same id", () => {
  const { state } = liveAtFive();
  state.received({ type: "lagging", id: 1, seq: 11 });
  assert.deepEqual(state.messagesToSend().map(({ type, id, resume }) => [type, id, resume]), [["subscribe", 1, 11]]);
  assert.deepEqual(state.received(change(12, [put("insert", 2, "x")])), [], "it is out of the fan-out");
});

test("a change that was told already is passed over", () => {
  const { state, query } = liveAtFive();
  assert.deepEqual(state.received(change(5, [put("update", 1, "old")])), []);
  assert.deepEqual(state.received(change(6, [put("update", 1, "new")])), [query]);
  assert.deepEqual(state.received(change(6, [put("update", 1, "new")])), []);
  assert.deepEqual(state.received(change(7, [put("update", 1, "other")], 8)), [], "another channel");
});

test("two queries share a channel, and each gets its own row objects", () => {
  const { state, query } = liveAtFive();
  const twin = state.open(SQL, [1], "app");
  state.received(subscribed(2, 6, "snapshot"));
  state.received(rows(2, 6, []));
  state.received(live(2, 6));
  drain(state, twin);
  assert.deepEqual(state.received(change(6, [put("insert", 3, "c")])), [query], "the twin has seen commit 6");
  assert.deepEqual(state.received(change(7, [put("insert", 4, "d")])), [query, twin]);
  assert.notEqual(drain(state, query).at(-1).row, drain(state, twin).at(-1).row);
});

test("a reader that does not read leaves the fan-out, and resumes when it has read all", () => {
  const { state, query } = liveAtFive(2);
  state.received(change(6, [put("insert", 2, "b"), put("insert", 3, "c"), put("insert", 4, "d")]));
  assert.equal(query.steps.length, 1, "an empty queue takes a commit of any size");
  state.received(change(7, [put("insert", 5, "e")]));
  assert.deepEqual(state.messagesToSend(), [{ type: "unsubscribe", id: 1 }]);
  state.received(change(8, [put("insert", 6, "f")]));
  assert.equal(query.steps.length, 1);
  drain(state, query);
  assert.deepEqual(state.messagesToSend().map(({ type, id, resume }) => [type, id, resume]), [["subscribe", 2, 6]]);
  assert.deepEqual(state.received({ type: "lagging", id: 1, seq: 7 }), [], "of its old number");
});

test("batches are asked for when there is room", () => {
  const state = new LiveState(2);
  const query = state.open(SQL, [], null);
  state.connected();
  state.received(subscribed(1, 5, "snapshot"));
  state.messagesToSend();
  state.received(rows(1, 5, [["a", 1], ["b", 2]], false));
  assert.deepEqual(state.messagesToSend(), []);
  state.take(query);
  assert.deepEqual(types(state.messagesToSend()), ["next_batch"]);
});

test("other columns after a resume: everything is read again", () => {
  const { state, query } = liveAtFive();
  state.disconnected();
  state.connected();
  state.messagesToSend();
  const wider = [...SCHEMA, { name: "more", type: "INT" }];
  state.received(subscribed(1, 5, "resumed", wider));
  const [gone, again] = state.messagesToSend();
  assert.deepEqual([gone.type, gone.id], ["unsubscribe", 1]);
  assert.deepEqual([again.type, again.id, again.resume], ["subscribe", 2, null]);
  assert.deepEqual(state.received(live(1, 6, [put("insert", 9, "narrow")])), [], "what was under way is of the old number");
  state.received(subscribed(2, 7, "snapshot", wider));
  state.received(rows(2, 7, [["a", 1, 10]]));
  assert.deepEqual(drain(state, query).map(({ op, row }) => [op, row]), [
    ["reset", undefined],
    ["insert", { text: "a", more: 10 }],
  ]);
});

test("schema_changed: the same, on the connection that is there", () => {
  const { state, query } = liveAtFive();
  state.received({ type: "error", id: 1, code: "schema_changed", message: "other columns" });
  assert.deepEqual(state.messagesToSend().map(({ type, resume }) => [type, resume]), [["subscribe", null]]);
  assert.equal(query.error, null);
});

test("an error with an id ends that query, after what it was told", () => {
  const { state, query } = liveAtFive();
  const other = state.open(SQL, [2], null);
  state.received(change(6, [put("update", 1, "b")]));
  assert.deepEqual(state.received({ type: "error", id: 1, code: "unknown_table", message: "dropped" }), [query]);
  assert.equal(query.state, ENDED);
  assert.equal(query.error.code, "unknown_table");
  assert.equal(drain(state, query).length, 1);
  assert.deepEqual(state.queries, [other]);
});

test("an error without an id is the connection's", () => {
  const { state } = liveAtFive();
  const refused = { type: "error", code: "unauthenticated", message: "no" };
  assert.throws(() => state.received(refused), { name: "TablecastError", code: "unauthenticated", message: "no" });
});

test("a query that is refused for now is asked for again, when somebody says so", () => {
  const { state, query } = liveAtFive();
  assert.deepEqual(state.received({ type: "error", id: 1, code: "overloaded", message: "later" }), [query]);
  assert.deepEqual([query.state, query.refusals, state.messagesToSend()], [REFUSED, 1, []]);
  state.disconnected();
  state.connected();
  assert.deepEqual(state.messagesToSend(), [], "another connection does not change that");
  state.askAgain(query);
  assert.deepEqual(state.messagesToSend().map(({ type, resume }) => [type, resume]), [["subscribe", 5]]);
  state.received({ type: "error", id: 1, code: "too_many_requests", message: "1,000 are enough" });
  assert.equal(query.state, ENDED, "waiting would not help: this connection has too many");
});

test("a pong says how far everything live has come", () => {
  const { state, query } = liveAtFive();
  const coming = state.open(SQL, [2], null);
  state.received(subscribed(2, 6, "snapshot"));
  state.received({ type: "pong", seq: 40 });
  assert.equal(coming.steps.resume, null, "its rows are not there");
  assert.deepEqual(state.received(change(40, [put("update", 1, "told before")])), []);
  state.disconnected();
  state.messagesToSend();
  state.connected();
  assert.deepEqual(state.messagesToSend().map(({ resume }) => resume), [40, null]);
  assert.equal(query.steps.length, 0);
});

test("closing says so once, and what comes later is nobody's", () => {
  const { state, query } = liveAtFive();
  state.received(change(6, [put("update", 1, "b")]));
  state.close(query);
  state.close(query);
  assert.deepEqual(state.messagesToSend(), [{ type: "unsubscribe", id: 1 }]);
  assert.equal(query.steps.length, 0);
  for (const late of [change(7, []), live(1, 8), { type: "unsubscribed", id: 1 }, { type: "lagging", id: 1, seq: 9 }]) {
    assert.deepEqual(state.received(late), []);
  }
});

test("messages of a newer server are passed over, those out of place are not", () => {
  const { state } = liveAtFive();
  assert.deepEqual(state.received({ type: "greeting" }), []);
  for (const wrong of [rows(1, 6, []), live(1, 6), subscribed(1, 6, "snapshot")]) {
    assert.throws(() => state.received(wrong), { code: "corrupt_data" }, wrong.type);
  }
  const fresh = new LiveState();
  fresh.open(SQL, [], null);
  fresh.connected();
  assert.throws(() => fresh.received(subscribed(1, 6, "resumed")), { code: "corrupt_data" });
});

test("a query that would end the connection of all is refused before it is sent", () => {
  const { state } = liveAtFive();
  const fits = "é".repeat(MAX_MESSAGE_BYTES / 2 - 150);
  state.open(SQL, [fits], null);
  assert.throws(() => state.open(SQL, [`${fits}${"é".repeat(150)}`], null), (error) => {
    assert.ok(error instanceof TablecastError);
    return error.code === "too_large" && error.details.limit === MAX_MESSAGE_BYTES;
  });
});
