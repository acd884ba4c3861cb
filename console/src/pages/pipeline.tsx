/** One pipeline: what it reads and writes, how fast, how far behind, and the switch for those who may. */

import { sql } from "../api.ts";
import {
  Badge, Code, confirm, Empty, Failure, Figure, Loading, Page, Panel, Plot, Time, toast,
} from "../components/index.ts"; // prettier-ignore
import { asApiError } from "../errors.ts";
import { count, perSecond, plural, short } from "../format.ts";
import type { LiveRows } from "../live.ts";
import { href } from "../router.ts";
import { may } from "../session.ts";
import { quotedName } from "../sql/quote.ts";
import { Flow } from "./flow.tsx";
import type { Node } from "./flow_layout.ts";
import { toneOf, usePipeline, type PipelineRow } from "./pipeline_data.ts";
import { definitionOf, queryOf } from "./pipeline_definition.ts";
import { useSampled } from "./sampled.ts";

export default function PipelinePage(props: { name: string }) {
  const live = usePipeline(props.name);
  const [row] = live.rows.value;
  const state = live.state.value;
  const mayRun = may("start and stop pipelines") && row?.definition != null; // one of a file is run by its file
  return (
    <Page
      title={props.name}
      about={<a href={href("pipelines")}>All pipelines</a>}
      actions={row && mayRun && <Switch row={row} />}
    >
      {state.is === "ended" && <Failure error={state.error} />}
      {state.is === "loading" && <Loading />}
      {state.is === "live" && row === undefined && (
        <section class="panel" aria-label="Pipeline">
          <Empty title={`There is no pipeline ${props.name}`}>
            It may have been dropped, or its file is not run any more.
          </Empty>
        </section>
      )}
      {row !== undefined && <Shown row={row} live={live} />}
    </Page>
  );
}

function Shown(props: { row: PipelineRow; live: LiveRows<PipelineRow> }) {
  const { row } = props;
  const wished = row.state === row.desired_state ? "" : `wished: ${row.desired_state}`;
  return (
    <>
      <dl class="figures">
        <Figure label="State" value={row.state} note={wished} tone={toneOf(row.state)} />
        <Figure label="Lag" value={count(row.lag)} />
        <Figure label="Messages in" value={count(row.rows_in)} />
        <Figure label="Rows out" value={count(row.rows_out)} />
        <Figure label="Rejected" value={count(row.rejected)} tone={Number(row.rejected) > 0 ? "warn" : "plain"} />
        <Figure label="Restarts" value={count(row.restarts)} />
      </dl>
      {row.state === "not attached" && <NotAttached row={row} />}
      {row.last_error !== null && <LastError row={row} />}
      <Picture row={row} />
      <Plots name={row.name} live={props.live} />
      <div class="columns">
        <Facts row={row} />
        {row.sql !== null && (
          <Panel title="Query">
            <div class="panel-body">
              <Code label="Text of the query">{queryOf(row)}</Code>
            </div>
          </Panel>
        )}
      </div>
    </>
  );
}

function NotAttached(props: { row: PipelineRow }) {
  return (
    <section class="panel" aria-label="How to run it">
      <div class="empty">
        <p class="empty-title">No runner has it</p>
        <p>It runs where Spark is. On such a machine:</p>
        <Code label="Command">{`tablecast pipelines run ${location.origin} ${props.row.name}`}</Code>
      </div>
    </section>
  );
}

function LastError(props: { row: PipelineRow }) {
  return (
    <Panel title="Last error">
      <p class="panel-body failure-message">
        <Badge tone={props.row.state === "failed" ? "bad" : "warn"}>{props.row.state}</Badge> {props.row.last_error}
      </p>
    </Panel>
  );
}

function Picture(props: { row: PipelineRow }) {
  const { row } = props;
  const { inputs, deadLetter } = definitionOf(row);
  const now = `${row.state}, ${perSecond(row.processed_rows_per_second)}`;
  const nodes: Node[] = [
    ...inputs.map(({ kind, name }) => ({
      id: name, layer: 0, kind, title: name, href: kind === "topic" ? href("topics", [name]) : undefined,
    })),
    { id: "pipeline", layer: 1, kind: "pipeline", title: row.name, note: now, tone: toneOf(row.state) },
    { id: "target", layer: 2, kind: "table", title: row.target ?? "–", note: `${count(row.rows_out)} rows written` },
  ]; // prettier-ignore
  const links = [...inputs.map(({ name }) => ({ from: name, to: "pipeline" })), { from: "pipeline", to: "target" }];
  if (deadLetter !== null) {
    const [note, link] = [plural(row.rejected ?? 0, "row"), href("topics", [deadLetter])];
    nodes.push({ id: "letters", layer: 2, kind: "dead letters", title: deadLetter, note, href: link });
    links.push({ from: "pipeline", to: "letters" });
  }
  const read = inputs.map(({ kind, name }) => `${kind} ${name}`).join(", ") || "nothing known";
  return (
    <Panel title="From inputs to table">
      <Flow
        title={`What ${row.name} reads and writes`}
        description={`It reads ${read} and writes ${row.target}.`}
        nodes={nodes}
        links={links}
      />
    </Panel>
  );
}

function Plots(props: { name: string; live: LiveRows<PipelineRow> }) {
  const { name, live } = props;
  const rates = useSampled(`pipeline ${name}`, 2, live.rows, ([row]) =>
    row === undefined ? null : [row.input_rows_per_second, row.processed_rows_per_second],
  );
  const lag = useSampled(`pipeline lag ${name}`, 1, live.rows, ([row]) =>
    row === undefined ? null : [row.lag === null ? null : Number(row.lag)],
  );
  return (
    <div class="columns">
      <div class="panel">
        <Plot
          {...rates} title="Rows" format={perSecond}
          lines={[{ label: "in", colour: "plot-1" }, { label: "processed", colour: "plot-3" }]}
        />
      </div>
      <div class="panel">
        <Plot {...lag} title="Lag" format={short} lines={[{ label: "messages", colour: "plot-4" }]} />
      </div>
    </div>
  ); // prettier-ignore
}

function Facts(props: { row: PipelineRow }) {
  const { row } = props;
  return (
    <Panel title="The runner">
      <dl class="facts">
        <dt>Runner</dt>
        <dd>{row.runner ?? "none"}</dd>
        <dt>Batch</dt>
        <dd>{count(row.batch_id)}</dd>
        <dt>Last batch</dt>
        <dd>
          <Time at={row.last_batch_at} />
        </dd>
        <dt>Defined</dt>
        <dd>{row.definition === null ? "in a file of the runner" : "in the catalog"}</dd>
      </dl>
    </Panel>
  );
}

function Switch(props: { row: PipelineRow }) {
  const { name, desired_state, lag } = props.row;
  const isRunning = desired_state === "running";
  const turn = async () => {
    const body = (
      <p>
        Its runner ends it after the batch under way. Messages wait: {plural(lag ?? 0, "message")} as of now. Start goes
        on where it was.
      </p>
    );
    if (isRunning && !(await confirm({ title: `Stop ${name}?`, body, action: "Stop the pipeline" }))) return;
    try {
      await sql(`${isRunning ? "STOP" : "START"} PIPELINE ${quotedName(name)}`);
      toast(isRunning ? `${name} is to stop` : `${name} is to run`);
    } catch (error) {
      toast(asApiError(error).message, "bad");
    }
  };
  return (
    <button type="button" class={isRunning ? "" : "primary"} onClick={() => void turn()}>
      {isRunning ? "Stop …" : "Start"}
    </button>
  );
}
