/** Pipelines: all of them, or one with its picture, its rates and what went wrong. */

import { Badge, Empty, Grid, Live, Page, Panel } from "../components/index.ts";
import { count, perSecond } from "../format.ts";
import { go, href, route } from "../router.ts";
import { may } from "../session.ts";
import { toneOf, usePipelines, type PipelineRow } from "./pipeline_data.ts";
import PipelinePage from "./pipeline.tsx";

const FIRST_PIPELINE = `CREATE TABLE app.orders_by_customer (customer TEXT PRIMARY KEY, orders BIGINT);
CREATE PIPELINE app.counting INTO app.orders_by_customer AS
  SELECT customer, count(*) AS orders FROM TOPIC app.order_events WHERE _op = 'insert' GROUP BY customer;`;

export default function Pipelines() {
  const [name] = route.value.path;
  return name === undefined ? <PipelineList /> : <PipelinePage key={name} name={name} />;
}

function PipelineList() {
  const live = usePipelines();
  const none = (
    <Empty title="No pipelines yet" sql={may("define tables and topics") ? FIRST_PIPELINE : undefined}>
      A pipeline is a query over topics that never ends; its results go into a table. Spark runs it.
    </Empty>
  );
  return (
    <Page title="Pipelines" about="Queries over topics that never end, and write what they find into tables.">
      <Panel title="All pipelines">
        <Live of={live} empty={none}>
          {(rows) => <PipelineGrid rows={[...rows].sort((a, b) => a.name.localeCompare(b.name))} />}
        </Live>
      </Panel>
    </Page>
  );
}

function PipelineGrid(props: { rows: PipelineRow[] }) {
  return (
    <Grid
      label="Pipelines"
      rows={props.rows}
      keyOf={(row) => row.name}
      onOpen={(row) => go("pipelines", [row.name])}
      maxHeight="70vh"
      columns={[
        { name: "pipeline", cell: (row) => <a href={href("pipelines", [row.name])}>{row.name}</a>, width: 24 },
        { name: "state", cell: (row) => <Badge tone={toneOf(row.state)}>{row.state}</Badge>, width: 15 },
        { name: "into", cell: (row) => row.target ?? "–", width: 24 },
        { name: "in", align: "end", cell: (row) => perSecond(row.input_rows_per_second), width: 10 },
        { name: "processed", align: "end", cell: (row) => perSecond(row.processed_rows_per_second), width: 11 },
        { name: "lag", align: "end", cell: (row) => count(row.lag), width: 10 },
        { name: "last error", cell: ({ last_error }) => <span title={last_error ?? ""}>{last_error}</span>, width: 24 },
      ]}
    />
  );
}
