import assert from "node:assert/strict";
import test from "node:test";
import { href, parseRoute } from "../src/router.ts";
import { toCsv } from "../src/sql/export.ts";
import { placeOf } from "../src/sql/place.ts";
import { holdsPassword, isSelect, statementAt, statementsOf } from "../src/sql/statements.ts";

test("statements end at semicolons that are not inside of something", () => {
  const text = "SELECT ';', \"a;b\" -- no; not here\n;; /* ; */ ;\n INSERT INTO t VALUES ('it''s;') ; -- the end";
  assert.deepEqual(
    statementsOf(text).map((statement) => statement.text),
    ["SELECT ';', \"a;b\" -- no; not here", "INSERT INTO t VALUES ('it''s;')"],
  );
  for (const { text: part, from, to } of statementsOf(text)) assert.equal(text.slice(from, to), part);
  assert.deepEqual(statementsOf("SELECT 'open; "), [{ text: "SELECT 'open;", from: 0, to: 13 }]);
});

test("the cursor is in the statement around it, or before it", () => {
  const text = "SELECT 1; SELECT 2; \n";
  assert.deepEqual(
    [0, 8, 9, 12, 21].map((at) => statementAt(text, at).text.at(-1)),
    ["1", "1", "1", "2", "2"],
  );
});

test("a select is known by its first word", () => {
  assert.ok(isSelect("-- all\n/* of them */ select 1") && isSelect("FROM t"));
  assert.ok(!isSelect("selected") && !isSelect("-- SELECT\nDELETE FROM t"));
  assert.ok(holdsPassword("ALTER USER 'a' SET Password 'b'") && !holdsPassword("SELECT passwords FROM t"));
});

const error = (details) => ({ details });
const marked = (text, details) => {
  const place = placeOf(error(details), text);
  return place && text.slice(place.from, place.to);
};

test("an error is at its line and column, or at the name it tells, in its statement", () => {
  assert.equal(marked("SELECT 1;\nSELEC 2", { line: 2, column: 1 }), "SELEC");
  assert.equal(marked("SELECT '😀' ,, 1", { line: 1, column: 13 }), ",");
  assert.equal(marked("SELECT 1 +", { line: 1, column: 11 }), "+");
  assert.equal(marked("SELECT a; SELECT a, b.a FROM b", { statement: 2, column: "a" }), "a");
  assert.equal(placeOf(error({ statement: 2, column: "a" }), "SELECT a; SELECT a").from, 17);
  assert.equal(marked("SELECT * FROM zz", { table: "default.zz" }), "zz");
  assert.equal(marked("SELECT id1, id FROM t", { column: "id" }), "id");
  assert.equal(marked("SELECT 1 / 0", {}), "SELECT 1 / 0");
  assert.equal(marked("", { statement: 3 }), null);
});

test("routes are told as they are read", () => {
  const { page, path, query } = parseRoute(href("groups", ["app.orders", "a/b c?"], { tab: "é&=" }));
  assert.deepEqual([page, path, query.get("tab")], ["groups", ["app.orders", "a/b c?"], "é&="]);
  assert.deepEqual([parseRoute("").page, parseRoute("#/x/%").path], ["", ["%"]]);
});

test("CSV quotes what needs it", () => {
  const schema = [
    { name: "a,b", type: "TEXT" },
    { name: "c", type: "JSON" },
  ];
  assert.equal(
    toCsv(schema, [
      ['say "x"', { d: 1 }],
      [null, ""],
    ]),
    '"a,b",c\r\n"say ""x""","{""d"":1}"\r\n,""\r\n',
  );
});
