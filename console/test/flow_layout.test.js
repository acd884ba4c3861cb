import assert from "node:assert/strict";
import test from "node:test";
import { layOut } from "../src/pages/flow_layout.ts";

const PIPELINE = [
  { id: "topic", layer: 0, kind: "topic", title: "events" },
  { id: "table", layer: 0, kind: "table", title: "customers" },
  { id: "pipeline", layer: 1, kind: "pipeline", title: "cities" },
];
const LINKS = [{ from: "topic", to: "pipeline" }, { from: "table", to: "pipeline" }];

test("where there is room the layers stand side by side", () => {
  const { boxes, width } = layOut(PIPELINE, LINKS, 1_000);
  assert.ok(width <= 1_000);
  assert.equal(boxes[0].x, boxes[1].x);
  assert.ok(boxes[2].x > boxes[0].x + boxes[0].width);
});

test("where there is little, they stand one below the other, as narrow as the room", () => {
  for (const room of [330, 300]) {
    const { boxes, width } = layOut(PIPELINE, LINKS, room);
    assert.ok(width <= room, `${width} in ${room}`);
    assert.equal(boxes[0].y, boxes[1].y);
    assert.ok(boxes[1].x >= boxes[0].x + boxes[0].width, "no box is on another");
    assert.ok(boxes[2].y > boxes[0].y + boxes[0].height);
  }
});

test("boxes that nobody could read are not made: the picture is wider than the room", () => {
  const many = [...PIPELINE, { id: "more", layer: 0, kind: "table", title: "cities" }];
  assert.ok(layOut(many, LINKS, 330).width > 330);
});
