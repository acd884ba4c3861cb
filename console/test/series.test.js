import assert from "node:assert/strict";
import test from "node:test";
import { HistogramDelta, quantileOf, Rate, Series, shownTime } from "../src/series.ts";

test("a rate is what a counter grew by, per second; one that fell was started again", () => {
  const rate = new Rate();
  assert.deepEqual(
    [rate.next(10, 100), rate.next(12, 150), rate.next(12, 150), rate.next(13, 7), rate.next(14, 9)],
    [null, 25, null, null, 2],
  );
});

test("a series forgets the oldest", () => {
  const series = new Series(2, 3);
  for (let at = 0; at < 5; at += 1) series.add(at, [at, at === 4 ? null : -at]);
  assert.deepEqual(series.columns, [
    [2, 3, 4],
    [2, 3, 4],
    [-2, -3, null],
  ]);
  assert.deepEqual([series.latest(0), series.latest(1)], [4, null]);
});

test("quantiles are linear inside of a bucket", () => {
  const buckets = [
    [0.1, 50],
    [0.2, 90],
    [0.4, 100],
    [Infinity, 100],
  ];
  assert.equal(quantileOf(buckets, 0.5), 0.1);
  assert.ok(Math.abs(quantileOf(buckets, 0.7) - 0.15) < 1e-12);
  assert.ok(Math.abs(quantileOf(buckets, 0.99) - 0.38) < 1e-12);
  assert.equal(
    quantileOf(
      [
        [0.1, 0],
        [Infinity, 5],
      ],
      0.5,
    ),
    0.1,
    "above all bounds: the last of them",
  );
  assert.equal(
    quantileOf(
      [
        [0.1, 0],
        [Infinity, 0],
      ],
      0.5,
    ),
    null,
  );
  assert.equal(quantileOf([], 0.5), null);
});

test("a histogram tells of what was observed since the sample before", () => {
  const delta = new HistogramDelta();
  assert.deepEqual(
    delta.next(
      new Map([
        [1, 1000],
        [2, 1000],
      ]),
      [0.5],
    ),
    [null],
  );
  assert.deepEqual(
    delta.next(
      new Map([
        [1, 1000],
        [2, 1010],
      ]),
      [0.5],
    ),
    [1.5],
  );
  assert.deepEqual(
    delta.next(
      new Map([
        [1, 1000],
        [2, 1010],
      ]),
      [0.5],
    ),
    [null],
  );
});

test("a plot shows a minute at least, and ends with its last sample, also where that is the only one", () => {
  assert.deepEqual(shownTime([], 1_000), [940, 1_000]);
  assert.deepEqual(shownTime([500], 1_000), [440, 500]);
  assert.deepEqual(shownTime([500, 530], 1_000), [470, 530]);
  assert.deepEqual(shownTime([100, 500], 1_000), [100, 500]);
});
