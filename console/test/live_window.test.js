import assert from "node:assert/strict";
import test from "node:test";
import { FAST_PER_SECOND, FLASH_MS, LiveWindow, MAX_FRESH, MAX_INITIAL } from "../src/live_window.ts";

const START = 1_760_000_000_000;
const put = (op, id, value, initial = false) => ({ op, key: [id], row: { id, value }, seq: 1, initial });
const remove = (id) => ({ op: "delete", key: [id], row: null, seq: 1, initial: false });
const shown = (view) => view.rows.map(({ row, mark }) => [row.id, row.value, mark]);

test("rows that were there come first without a mark, those that came or changed stand on top, the latest first", () => {
  const live = new LiveWindow();
  live.apply(put("insert", 1, "a", true), START);
  live.apply(put("insert", 2, "b", true), START);
  assert.equal(live.isMoving(START), false);
  live.apply(put("insert", 3, "c"), START);
  live.apply(put("insert", 4, "d"), START);
  live.apply(put("update", 2, "B"), START);
  live.apply(remove(1), START);
  const view = live.view(START);
  assert.deepEqual(shown(view), [
    [1, "a", "delete"],
    [2, "B", "update"],
    [4, "d", "insert"],
    [3, "c", "insert"],
  ]);
  assert.equal(view.total, 3);
});

test("a deleted row stays until it has faded, or comes back", () => {
  const live = new LiveWindow();
  for (const id of [1, 2]) live.apply(put("insert", id, "a", true), START);
  for (const id of [1, 2]) live.apply(remove(id), START);
  live.apply(put("insert", 2, "again"), START + 10);
  assert.equal(live.view(START + FLASH_MS - 1).rows.length, 2);
  assert.deepEqual(shown(live.view(START + FLASH_MS)), [[2, "again", "insert"]]);
});

test("the speed is that of the last second, and fast is a sample", () => {
  const live = new LiveWindow();
  for (let ms = 0; ms < 3000; ms += 1) live.apply(put("update", ms % 7, ms), START + ms);
  const fast = live.view(START + 3000);
  assert.ok(Math.abs(fast.perSecond - 1000) < 20, `${fast.perSecond}`);
  assert.ok(fast.isSampled && fast.perSecond > FAST_PER_SECOND);
  const later = live.view(START + 5000);
  assert.deepEqual([later.perSecond, later.isSampled], [0, false]);
  assert.equal(live.isMoving(START + 5000), false);
});

test("what is kept is bounded, what is counted is not", () => {
  const live = new LiveWindow();
  for (let id = 0; id < MAX_INITIAL + 10; id += 1) live.apply(put("insert", id, 0, true), START);
  for (let id = 0; id < MAX_FRESH + 10; id += 1) live.apply(put("insert", -1 - id, 0), START);
  const view = live.view(START);
  assert.equal(view.rows.length, MAX_INITIAL + MAX_FRESH);
  assert.equal(view.total, MAX_INITIAL + MAX_FRESH + 20);
  assert.equal(view.rows[0].row.id, -(MAX_FRESH + 10), "the latest is never left out");
});

/** Reproducible: the same numbers in every run. */
function* numbers(seed) {
  for (let x = seed; ;) yield (x = (Math.imul(x, 1664525) + 1013904223) >>> 0) / 2 ** 32;
}

test("the rows are those of a map that the same changes are folded into", () => {
  for (let seed = 1; seed <= 50; seed += 1) {
    const random = numbers(seed);
    const pick = (below) => Math.floor(random.next().value * below);
    const [live, model] = [new LiveWindow(), new Map()];
    let now = START;
    for (let step = 0; step < 300; step += 1, now += pick(200)) {
      const [id, value] = [pick(12), step];
      if (pick(100) === 0) {
        live.apply({ op: "reset", seq: 1 }, now);
        model.clear();
      } else if (model.has(id) && pick(2)) {
        live.apply(remove(id), now);
        model.delete(id);
      } else {
        live.apply(put(model.has(id) ? "update" : "insert", id, value), now);
        model.set(id, value);
      }
      const view = live.view(now);
      const there = view.rows.filter(({ mark }) => mark !== "delete").map(({ row }) => [row.id, row.value]);
      assert.deepEqual(new Map(there), model, `seed ${seed}, step ${step}`);
      assert.equal(there.length, model.size);
      assert.equal(view.total, model.size);
    }
  }
});
