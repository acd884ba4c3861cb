/** The panels of the Overview: what there is, and how far behind it is. */

import { Badge, Empty, Grid, Live, Panel, Time, type Tone } from "../components/index.ts";
import { bytes, count, duration, perSecond, plural } from "../format.ts";
import { useLiveRows, useLiveRowsIf, type LiveRows } from "../live.ts";
import { href } from "../router.ts";
import { may } from "../session.ts";
import { vitals, vitalsVersion } from "../vitals.ts";
import { LagBar } from "./lag_bar.tsx";
import { byGroup, type GroupRow } from "./lag.ts";

export interface TopicRow {
  namespace: string;
  name: string;
  partitions: string;
  sources: string;
  messages: string;
  bytes: string;
}

interface PipelineRow {
  name: string;
  target: string | null;
  desired_state: string;
  state: string;
  processed_rows_per_second: number | null;
  lag: string | null;
  last_error: string | null;
}

interface NodeRow {
  node_id: string;
  broker: string | null;
  online: boolean;
  pending: string;
  peers: string;
  last_flush: string | null;
  last_compared: string | null;
  last_error: string | null;
  quarantined: string;
}

interface LiveQueryRow {
  channel: string;
  table_name: string;
  query: string;
  user_id: string | null;
  subscribers: string;
  commits_told: string;
}

const FIRST_STEPS = `CREATE NAMESPACE IF NOT EXISTS app;
CREATE TABLE app.orders (id BIGINT PRIMARY KEY DEFAULT SNOWFLAKE_ID(), customer TEXT NOT NULL, amount DECIMAL(12,2));
CREATE TOPIC app.order_events;
ALTER TOPIC app.order_events ADD SOURCE app.orders ON ANY;
INSERT INTO app.orders (customer, amount) VALUES ('ann', 12.5);`;

export function Topics(props: { live: LiveRows<TopicRow> }) {
  void vitalsVersion.value;
  const name = ({ namespace, name }: TopicRow) => `${namespace}.${name}`;
  return (
    <Panel title="Topics">
      <Live of={props.live} empty={<NoTopics />}>
        {(rows) => (
          <Grid
            label="Topics"
            rows={rows}
            keyOf={name}
            maxHeight="300px"
            columns={[
              { name: "topic", cell: (row) => <a href={href("topics", [name(row)])}>{name(row)}</a>, width: 20 },
              {
                name: "in",
                align: "end",
                cell: (row) => perSecond(vitals.topicRates.get(name(row)) ?? null),
                width: 11,
              },
              { name: "messages", align: "end", cell: (row) => count(row.messages), width: 12 },
              { name: "size", align: "end", cell: (row) => bytes(row.bytes), width: 10 },
            ]}
          />
        )}
      </Live>
    </Panel>
  );
}

function NoTopics() {
  return (
    <Empty title="No topics yet" sql={may("define tables and topics") ? FIRST_STEPS : undefined}>
      A topic carries every change of the tables that are its sources.
    </Empty>
  );
}

export function Groups(props: { live: LiveRows<GroupRow> }) {
  return (
    <Panel title="Groups">
      <Live
        of={props.live}
        empty={<Empty title="No groups yet">A group is there when somebody first consumes with its name.</Empty>}
      >
        {(partitions) => {
          const rows = byGroup(partitions);
          const most = Math.max(...rows.map((row) => row.lag));
          return (
            <Grid
              label="Groups"
              rows={rows}
              keyOf={(row) => `${row.topic} ${row.group_id}`}
              maxHeight="300px"
              columns={[
                {
                  name: "group",
                  cell: (row) => <a href={href("groups", [row.topic, row.group_id])}>{row.group_id}</a>,
                  width: 13,
                },
                { name: "topic", cell: (row) => row.topic, width: 20 },
                { name: "lag", align: "end", cell: (row) => <LagBar row={row} most={most} />, width: 16 },
                {
                  name: "behind",
                  align: "end",
                  cell: (row) => (row.lag > 0 ? duration(row.lag_seconds) : "–"),
                  width: 12,
                },
              ]}
            />
          );
        }}
      </Live>
    </Panel>
  );
}

const STATE_TONE: Record<string, Tone> = { running: "good", stopped: "plain", failed: "bad" };

export function Pipelines() {
  const live = useLiveRows<PipelineRow>(
    "SELECT name, target, desired_state, state, processed_rows_per_second, lag, last_error FROM system.pipelines",
  );
  return (
    <Panel title="Pipelines">
      <Live
        of={live}
        empty={<Empty title="No pipelines yet">A pipeline reads topics and tables, and writes a table.</Empty>}
      >
        {(rows) => (
          <Grid
            label="Pipelines"
            rows={rows}
            keyOf={(row) => row.name}
            maxHeight="300px"
            columns={[
              { name: "pipeline", cell: (row) => <a href={href("pipelines", [row.name])}>{row.name}</a>, width: 22 },
              { name: "state", cell: (row) => <PipelineState row={row} />, width: 15 },
              { name: "rows", align: "end", cell: (row) => perSecond(row.processed_rows_per_second), width: 11 },
              { name: "lag", align: "end", cell: (row) => count(row.lag), width: 10 },
            ]}
          />
        )}
      </Live>
    </Panel>
  );
}

function PipelineState(props: { row: PipelineRow }) {
  const { state, last_error } = props.row;
  return (
    <Badge tone={STATE_TONE[state] ?? "warn"} title={last_error ?? undefined}>
      {state}
    </Badge>
  );
}

export function Replication() {
  const live = useLiveRows<NodeRow>(
    "SELECT node_id, broker, online, pending, peers, last_flush, last_compared, last_error, quarantined FROM system.replication",
  );
  const none = (
    <Empty title="This server does not replicate">With a broker in its settings it would be a node among others.</Empty>
  );
  return (
    <Panel title="Replication">
      <Live of={live} empty={none}>
        {([node]) => <Node node={node!} />}
      </Live>
    </Panel>
  );
}

function Node(props: { node: NodeRow }) {
  const { node } = props;
  const peers = node.peers === "" ? 0 : node.peers.split(", ").length;
  return (
    <dl class="facts">
      <dt>Node</dt>
      <dd>
        <a href={href("edge")}>{node.node_id}</a>{" "}
        <Badge tone={node.online ? "good" : "warn"}>{node.online ? "online" : "offline"}</Badge>
      </dd>
      <dt>Broker</dt>
      <dd>{node.broker}</dd>
      <dt>Outbox</dt>
      <dd>{plural(node.pending, "event")}</dd>
      <dt>Peers</dt>
      <dd>{plural(peers, "node")}</dd>
      <dt>Compared</dt>
      <dd>
        <Time at={node.last_compared} />
      </dd>
      {Number(node.quarantined) > 0 && (
        <>
          <dt>Set aside</dt>
          <dd>
            <Badge tone="warn">{plural(node.quarantined, "event")}</Badge>
          </dd>
        </>
      )}
      {node.last_error && (
        <>
          <dt>Last error</dt>
          <dd>{node.last_error}</dd>
        </>
      )}
    </dl>
  );
}

export function LiveQueries() {
  const live = useLiveRowsIf<LiveQueryRow>(
    may("see people"),
    "SELECT channel, table_name, query, user_id, subscribers, commits_told FROM system.live_queries",
  );
  if (live === null) return null;
  return (
    <Panel title="Live queries">
      <Live of={live} empty={<Empty title="Nobody follows a live query" />}>
        {(rows) => (
          <Grid
            label="Live queries"
            rows={rows}
            keyOf={(row) => row.channel}
            maxHeight="300px"
            columns={[
              { name: "table", cell: (row) => row.table_name, width: 22 },
              { name: "query", cell: (row) => <code title={row.query}>{row.query}</code>, width: 60 },
              { name: "user", cell: (row) => row.user_id ?? "–", width: 12 },
              { name: "subscribers", align: "end", cell: (row) => count(row.subscribers), width: 14 },
              { name: "told", align: "end", cell: (row) => count(row.commits_told), width: 10 },
            ]}
          />
        )}
      </Live>
    </Panel>
  );
}
