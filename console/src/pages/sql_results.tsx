/** The results of a text, one panel per statement. */

import type { Value } from "tablecast";
import type { Answer, Column, Result } from "../api.ts";
import { copy, Grid, Panel, type GridColumn } from "../components/index.ts";
import { count, plural } from "../format.ts";
import { textOf, toCsv, toJson } from "../sql/export.ts";

const WIDTH_ROWS = 100; // looked at to find out how wide a column is
const MIN_CHARS = 7;
const MAX_CHARS = 48;
const NUMERIC = /^(SMALLINT|INT|BIGINT|FLOAT|DOUBLE|DECIMAL|HUGEINT|UBIGINT)/;

export function Results(props: { answer: Answer }) {
  const { results, took_ms } = props.answer;
  return (
    <>
      {results.map((result, at) => (
        <One key={at} result={result} title={results.length > 1 ? `Result ${at + 1}` : "Result"} tookMs={took_ms} />
      ))}
    </>
  );
}

function One(props: { result: Result; title: string; tookMs: number }) {
  const { schema, rows, message, seq, row_count } = props.result;
  if (schema.length === 0) {
    return (
      <Panel title={props.title} actions={<span class="faint">{props.tookMs.toFixed(1)} ms</span>}>
        <p class="panel-body done">
          <span aria-hidden="true">✓</span> {message || plural(row_count, "row")}
          {seq !== null && <span class="faint"> · commit {count(seq)}</span>}
        </p>
      </Panel>
    );
  }
  return (
    <Panel title={props.title} actions={<Actions result={props.result} tookMs={props.tookMs} />}>
      {rows.length === 0 ? (
        <p class="panel-body faint">No rows. Columns: {schema.map(({ name }) => name).join(", ")}</p>
      ) : (
        <Grid
          label={props.title}
          columns={columnsOf(schema, rows)}
          rows={rows}
          keyOf={(_, at) => at}
          maxHeight="min(60vh, 640px)"
        />
      )}
    </Panel>
  );
}

function Actions(props: { result: Result; tookMs: number }) {
  const { schema, rows } = props.result;
  return (
    <>
      <span class="faint">
        {plural(rows.length, "row")} · {props.tookMs.toFixed(1)} ms
      </span>
      <button type="button" class="small" onClick={() => void copy(toCsv(schema, rows), "Copied as CSV")}>
        Copy CSV
      </button>
      <button type="button" class="small" onClick={() => void copy(toJson(schema, rows), "Copied as JSON")}>
        Copy JSON
      </button>
    </>
  );
}

function columnsOf(schema: Column[], rows: Value[][]): GridColumn<Value[]>[] {
  return schema.map(({ name, type }, at) => ({
    name,
    note: type,
    align: NUMERIC.test(type) ? "end" : undefined,
    width: widthOf(
      name.length + type.length + 2,
      rows.slice(0, WIDTH_ROWS).map((row) => row[at]!),
    ),
    cell: (row) => <Cell value={row[at]!} />,
  }));
}

/** Wide enough for most, in characters. */
export function widthOf(head: number, values: Value[]): number {
  const widest = values.reduce((most: number, value) => Math.max(most, textOf(value).length), head);
  return Math.min(MAX_CHARS, Math.max(MIN_CHARS, widest)) + 4;
}

export function Cell(props: { value: Value | undefined }) {
  const { value } = props;
  if (value === null || value === undefined) return <span class="null">NULL</span>;
  const text = textOf(value);
  return <span title={text.length > MAX_CHARS ? text : undefined}>{text}</span>;
}
