/** tablecast.d.ts is written by hand: it must name what the module has, no more and no less. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import * as tablecast from "../src/index.js";

const TYPES = readFileSync(new URL("../tablecast.d.ts", import.meta.url), "utf8").replace(/\/\*[^]*?\*\//g, "");
const MEMBER = /^ {2}(?:readonly )?(\[?[\w.]+\]?)[<?(:]/gm;
const OWN_PROPERTIES = { LiveTable: ["ended"], TablecastError: ["code", "details"] }; // set by constructors

function declared(kind) {
  return [...TYPES.matchAll(new RegExp(`^export ${kind} (\\w+)`, "gm"))].map(([, name]) => name);
}

function members(name) {
  const [, body] = TYPES.match(new RegExp(`^export class ${name}\\b[^{]*\\{\\n([^]*?)^\\}`, "m"));
  return [...body.matchAll(MEMBER)].map(([, member]) => member).filter((member) => member !== "constructor");
}

function implemented(name) {
  const named = Reflect.ownKeys(tablecast[name].prototype).filter((member) => member !== "constructor");
  const shown = named.map((member) => (typeof member === "symbol" ? `[${member.description}]` : member));
  return [...shown, ...(OWN_PROPERTIES[name] ?? [])];
}

test("the types name every export", () => {
  assert.deepEqual([...declared("class"), ...declared("function")].sort(), Object.keys(tablecast).sort());
});

for (const name of declared("class")) {
  test(`the types name every member of ${name}`, () => {
    assert.deepEqual(members(name).sort(), implemented(name).sort());
  });
}
