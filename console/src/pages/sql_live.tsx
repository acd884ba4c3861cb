/** One SELECT that stays current: changed rows flash by what happened to them. */

import { useMemo } from "preact/hooks";
import type { Value } from "tablecast";
import { Badge, Failure, Grid, Loading, Panel, type GridColumn } from "../components/index.ts";
import { count, plural } from "../format.ts";
import type { Followed } from "../live_follow.ts";
import { FLASH_MS, SAMPLE_MS, type View, type WindowRow } from "../live_window.ts";
import { Cell, widthOf } from "./sql_results.tsx";

const WIDTH_ROWS = 50; // looked at to find out how wide a column is
const NUMBER = /^-?\d+(\.\d+)?$/;

export function LiveResult(props: { text: string; followed: Followed }) {
  const { followed } = props;
  const state = followed.state.value;
  const view = followed.view.value;
  const names = followed.columns.value;
  // Widths are found once there are rows, and stay: columns that move while rows flash by cannot be read.
  const columns = useMemo(() => columnsOf(names, view.rows), [names.join("\0"), view.rows.length > 0]);
  if (state.is === "loading") return <Loading what="the rows" />;
  return (
    <Panel title="Live result" actions={<Pace view={view} />}>
      {state.is === "ended" && <Failure error={state.error} title="This query is not live" />}
      {names.length > 0 && (
        <Grid
          label="Live result"
          columns={columns}
          rows={view.rows}
          keyOf={(row) => row.key}
          rowClass={(row) => flash(row, view.at)}
          keepsPlace
          maxHeight="min(60vh, 640px)"
        />
      )}
      {state.is === "live" && view.rows.length === 0 && (
        <p class="panel-body faint">No rows yet. They appear here as they are written.</p>
      )}
    </Panel>
  );
}

/** How fast it is, and what of it is shown. */
function Pace(props: { view: View }) {
  const { rows, total, perSecond, isSampled } = props.view;
  return (
    <span class="pace" role="status" aria-live="off">
      <Badge tone="good">live</Badge>
      <span class="legend">
        <span class="op insert">insert</span>
        <span class="op update">update</span>
        <span class="op delete">delete</span>
      </span>
      <span class="faint" data-testid="pace">
        {rows.length < total ? `${count(rows.length)} of ${plural(total, "row")}` : plural(total, "row")}
        {perSecond > 0 && ` · ${plural(perSecond, "change")}/s`}
        {isSampled && `, showing a sample ${1000 / SAMPLE_MS} times a second`}
      </span>
    </span>
  );
}

/** Two classes for each mark, so that a second flash begins anew. */
function flash(row: WindowRow, now: number): string | undefined {
  if (row.mark === null || now - row.markedAt >= FLASH_MS) return undefined;
  return `flash ${row.mark} turn-${row.turn % 2}`;
}

function columnsOf(names: string[], rows: readonly WindowRow[]): GridColumn<WindowRow>[] {
  return names.map((name) => {
    const values = rows.slice(0, WIDTH_ROWS).map(({ row }) => row[name] ?? null);
    const isNumber = values.length > 0 && values.every(looksLikeNumber);
    return {
      name,
      align: isNumber ? ("end" as const) : undefined,
      width: widthOf(name.length + 2, values),
      cell: ({ row }) => <Cell value={row[name]} />,
    };
  });
}

/** BIGINT and DECIMAL come as text. */
function looksLikeNumber(value: Value): boolean {
  return value === null || typeof value === "number" || (typeof value === "string" && NUMBER.test(value));
}
