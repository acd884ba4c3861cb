/** Topics: all of them, or one with its picture, its messages, its tail, and a way to put something in. */

import { useSignal } from "@preact/signals";
import { Empty, Grid, Live, Page, Panel } from "../components/index.ts";
import { bytes, count, perSecond } from "../format.ts";
import { go, href, route } from "../router.ts";
import { may } from "../session.ts";
import { Filter, matches } from "./filter.tsx";
import { fullNameOf, useAllOffsets, useTopicRates, useTopics, type OffsetRow, type TopicRow } from "./topic_data.ts";
import TopicPage from "./topic.tsx";

const FIRST_TOPIC = `CREATE NAMESPACE IF NOT EXISTS app;
CREATE TABLE app.orders (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), customer TEXT NOT NULL, amount DECIMAL(12,2));
CREATE TOPIC app.order_events PARTITIONS 2;
ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY;`;

export default function Topics() {
  const [name] = route.value.path;
  return name === undefined ? <TopicList /> : <TopicPage key={name} name={name} />;
}

function TopicList() {
  const topics = useTopics();
  const offsets = useAllOffsets();
  const filter = useSignal("");
  return (
    <Page
      title="Topics"
      about="Logs of messages: every change of the tables that are their sources."
      actions={<Filter text={filter} />}
    >
      <Panel title="All topics">
        <Live of={topics} empty={<NoTopics />}>
          {(rows) => <TopicGrid rows={matching(rows, filter.value)} offsets={offsets.rows.value} />}
        </Live>
      </Panel>
    </Page>
  );
}

function matching(rows: TopicRow[], text: string): TopicRow[] {
  return rows
    .filter((row) => matches(fullNameOf(row), text))
    .sort((a, b) => fullNameOf(a).localeCompare(fullNameOf(b)));
}

function TopicGrid(props: { rows: TopicRow[]; offsets: OffsetRow[] }) {
  const rates = useTopicRates().value;
  const written = writtenOf(props.offsets);
  if (props.rows.length === 0) return <Empty title="No topic has a name like that" />;
  return (
    <Grid
      label="Topics"
      rows={props.rows}
      keyOf={fullNameOf}
      onOpen={(row) => go("topics", [fullNameOf(row)])}
      maxHeight="70vh"
      columns={[
        { name: "topic", cell: (row) => <a href={href("topics", [fullNameOf(row)])}>{fullNameOf(row)}</a>, width: 24 },
        { name: "sources", align: "end", cell: (row) => count(row.sources), width: 10 },
        { name: "partitions", align: "end", cell: (row) => count(row.partitions), width: 11 },
        { name: "written", align: "end", cell: (row) => count(written.get(fullNameOf(row))), width: 12 },
        { name: "kept", align: "end", cell: (row) => count(row.messages), width: 12 },
        { name: "in", align: "end", cell: (row) => perSecond(rates.of(fullNameOf(row)).in), width: 9 },
        { name: "out", align: "end", cell: (row) => perSecond(rates.of(fullNameOf(row)).out), width: 9 },
        { name: "size", align: "end", cell: (row) => bytes(row.bytes), width: 10 },
      ]}
    />
  );
}

/** Where the logs end: as many messages were ever written. */
function writtenOf(offsets: OffsetRow[]): Map<string, number> {
  const sums = new Map<string, number>();
  for (const { topic, end_offset } of offsets) sums.set(topic, (sums.get(topic) ?? 0) + Number(end_offset));
  return sums;
}

function NoTopics() {
  if (!may("define tables and topics")) {
    return <Empty title="No topics yet">Somebody with the role dba can make one.</Empty>;
  }
  return (
    <Empty title="No topics yet" sql={FIRST_TOPIC}>
      A topic gets a message for every change of its source tables, in the commit of that change.
    </Empty>
  );
}
