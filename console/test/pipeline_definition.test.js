import assert from "node:assert/strict";
import test from "node:test";
import { queryOf } from "../src/pages/pipeline_definition.ts";

const input = (kind, name, view) => ({ kind, name, view });
const query = (sql, ...inputs) => queryOf({ sql, inputs: "", definition: JSON.stringify({ inputs }) });

test("a query is shown with the topics and tables that it reads, as it was written", () => {
  const [topic, table] = [input("topic", "app.a+b", "a+b"), input("table", "app.c", "c")];
  assert.equal(
    query("SELECT `a+b`.x, `c`.y FROM `a+b` JOIN `c` ON `a+b`.id = `c`.id", topic, table),
    "SELECT `a+b`.x, `c`.y FROM TOPIC app.a+b JOIN TABLE app.c ON `a+b`.id = `c`.id",
  );
  assert.equal(query("SELECT 1 from\n `a+b`, `c`", topic, table), "SELECT 1 from\n TOPIC app.a+b, TABLE app.c");
});

test("a pipeline of a file has no text", () => {
  assert.equal(queryOf({ sql: null, inputs: "app.t", definition: null }), "");
});
