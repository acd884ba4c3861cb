import assert from "node:assert/strict";
import test from "node:test";
import { forgetSeries, KEPT_SERIES, keptSeries } from "../src/pages/sampled.ts";

test("a series is found again by its name, and of many those looked at last are kept", () => {
  const first = keptSeries("first", 1);
  for (let at = 1; at < KEPT_SERIES; at += 1) keptSeries(`series ${at}`, 1);
  assert.equal(keptSeries("first", 1), first);
  const second = keptSeries("series 1", 1);
  keptSeries("one more", 1);
  assert.equal(keptSeries("first", 1), first);
  assert.equal(keptSeries("series 1", 1), second);
  const others = Array.from({ length: KEPT_SERIES - 1 }, (_, at) => keptSeries(`other ${at}`, 1));
  assert.notEqual(keptSeries("first", 1), first);
  assert.equal(keptSeries(`other ${KEPT_SERIES - 2}`, 1), others.at(-1));
});

test("who signs in finds nothing of who signed out", () => {
  const before = keptSeries("group a b", 1);
  forgetSeries();
  assert.notEqual(keptSeries("group a b", 1), before);
});
