/** What goes to the server and what comes from it, value by value. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { LiveRows } from "../src/rows.js";
import { Shape } from "../src/shape.js";
import { toBase64, toParams } from "../src/values.js";

test("parameters as JSON carries them", () => {
  const bytes = Uint8Array.from([0, 104, 105, 255]);
  const given = [1, "a", null, true, 5n, 2n ** 63n - 1n, new Date(0), bytes, bytes.buffer, bytes.subarray(1, 3), { a: [1] }];
  assert.deepEqual(toParams(given), [
    1,
    "a",
    null,
    true,
    5,
    "9223372036854775807",
    "1970-01-01T00:00:00.000Z",
    { $bytes: "AGhp/w==" },
    { $bytes: "AGhp/w==" },
    { $bytes: "aGk=" },
    { a: [1] },
  ]);
});

test("what JSON would change without a word is refused, by its place", () => {
  for (const value of [NaN, Infinity, undefined, () => 1, Symbol("s")]) {
    assert.throws(() => toParams([1, value]), { code: "type_mismatch", details: { parameter: 2 } });
  }
  assert.throws(() => toParams({ id: 1 }), { code: "invalid_request" });
});

test("bytes of any number", () => {
  const bytes = Uint8Array.from({ length: 100_000 }, (_, n) => n % 251);
  assert.deepEqual(new Uint8Array(Buffer.from(toBase64(bytes), "base64")), bytes);
});

test("no column name does harm", () => {
  const shape = new Shape([{ name: "__proto__", type: "JSON" }, { name: "constructor", type: "INT" }], [1]);
  const row = shape.row([{ polluted: true }, 1]);
  assert.equal(row.polluted, undefined);
  assert.deepEqual(Object.entries(row), [["__proto__", { polluted: true }], ["constructor", 1]]);
});

test("keys of several columns, and of values that look alike, are told apart", () => {
  const kept = new LiveRows();
  const keys = [["1", 1], [1, "1"], ["a,b", "c"], ["a", "b,c"], [null, 0]];
  const changes = keys.map((key, n) => ({ op: "insert", key, row: { n }, seq: 1, initial: true }));
  kept.fold({ changes, seq: 1, whole: true });
  assert.deepEqual(keys.map((key) => kept.get(key).n), [0, 1, 2, 3, 4]);
});

test("rows that were given out stay as they are, and are not copied if they were not", () => {
  const kept = new LiveRows();
  const put = (id, seq) => ({ changes: [{ op: "insert", key: [id], row: { id }, seq }], seq, whole: true });
  kept.fold(put(1, 1));
  const before = kept.given();
  kept.fold(put(2, 2));
  assert.equal(before.size, 1);
  const after = kept.given();
  assert.notEqual(after, before);
  assert.equal(kept.given(), after, "the same as long as nothing changes");
  assert.equal(after.size, 2);
});

test("old rows stay until all new ones are there, and then one reset is told", () => {
  const kept = new LiveRows();
  const initial = (ids, whole, seq) => ({
    changes: ids.map((id) => ({ op: "insert", key: [id], row: { id }, seq, initial: true })),
    seq,
    whole,
  });
  assert.deepEqual(kept.fold(initial([1], false, 5)), []);
  assert.equal(kept.version, 0);
  assert.deepEqual(kept.fold(initial([2], true, 5)), [{ op: "reset", seq: 5 }]);
  assert.deepEqual(kept.fold({ changes: [{ op: "reset", seq: 9 }], seq: 9, whole: false }), []);
  assert.deepEqual(kept.fold(initial([3], false, 9)), []);
  assert.deepEqual([...kept.given().values()], [{ id: 1 }, { id: 2 }]);
  assert.deepEqual(kept.fold(initial([], true, 9)), [{ op: "reset", seq: 9 }]);
  assert.deepEqual([...kept.given().values()], [{ id: 3 }]);
  assert.deepEqual([kept.seq, kept.version], [9, 2]);
});
