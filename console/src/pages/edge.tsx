/** Replication: this node, the others it hears of, what waits to be sent, and what was set aside. */

import { useMemo, useRef } from "preact/hooks";
import { Badge, Code, Empty, Figure, Grid, Live, Page, Panel, Time } from "../components/index.ts";
import { bytes, count, plural } from "../format.ts";
import { useLiveRows } from "../live.ts";
import { may } from "../session.ts";
import { Flow } from "./flow.tsx";
import type { Node } from "./flow_layout.ts";

interface NodeRow {
  node_id: string;
  broker: string | null;
  online: boolean;
  sequence: string;
  pending: string;
  given_up: string;
  last_flush: string | null;
  last_error: string | null;
  last_error_at: string | null;
  published: string;
  publish_errors: string;
  applied: string;
  beaten: string;
  seen: string;
  quarantined: string;
  ahead: string;
  peers: string;
  rounds: string;
  differing: string;
  pulled: string;
  pushed: string;
  last_compared: string | null;
}

interface AsideRow {
  id: string;
  time: string;
  outgoing: boolean;
  key: string | null;
  node_id: string | null;
  sequence: string | null;
  bytes: string;
  reason: string;
}

interface TableRow {
  namespace: string;
  name: string;
  primary_key: string;
  replicate: boolean;
}

const NODE = `SELECT node_id, broker, online, sequence, pending, given_up, last_flush, last_error, last_error_at, published,
  publish_errors, applied, beaten, seen, quarantined, ahead, peers, rounds, differing, pulled, pushed, last_compared
  FROM system.replication`;
const FIRST_TABLE = "CREATE TABLE app.stock (sku TEXT PRIMARY KEY, count INT) WITH (REPLICATE = TRUE);";

export default function Edge() {
  const nodes = useLiveRows<NodeRow>(NODE);
  return (
    <Page title="Edge" about="Nodes that keep copies of the same tables, over an MQTT broker.">
      <Live of={nodes} empty={<NoNode />}>
        {([node]) => <Shown node={node!} />}
      </Live>
      <Tables />
    </Page>
  );
}

function NoNode() {
  return (
    <section class="panel" aria-label="Replication">
      <div class="empty">
        <p class="empty-title">This server does not replicate</p>
        <p>Started with the address of a broker, it is a node among others:</p>
        <Code label="Command">tablecast serve --data ./data --mqtt mqtt://broker.local:1883 --node-id hall-2</Code>
      </div>
    </section>
  );
}

function Shown(props: { node: NodeRow }) {
  const { node } = props;
  return (
    <>
      <dl class="figures">
        <Figure label="This node" value={node.online ? "online" : "offline"} note={node.node_id} tone={node.online ? "plain" : "warn"} />
        <Figure label="Outbox" value={count(node.pending)} note="events wait" tone={Number(node.pending) > 0 && !node.online ? "warn" : "plain"} />
        <Figure label="Peers online" value={count(peersOf(node).length)} />
        <Figure label="Set aside" value={count(node.quarantined)} tone={Number(node.quarantined) > 0 ? "warn" : "plain"} />
        <Figure label="Given up" value={count(node.given_up)} tone={Number(node.given_up) > 0 ? "bad" : "plain"} />
      </dl>
      <Nodes node={node} />
      <div class="columns">
        <Sending node={node} />
        <Comparing node={node} />
      </div>
      <Quarantine />
    </>
  );
}

function peersOf(node: NodeRow): string[] {
  return node.peers === "" ? [] : node.peers.split(", ");
}

/** Peers that this page has seen stay in the picture when they leave. */
function Nodes(props: { node: NodeRow }) {
  const { node } = props;
  const known = useRef(new Set<string>());
  const online = peersOf(node);
  for (const peer of online) known.current.add(peer);
  const peers = [...known.current].sort();
  const nodes: Node[] = useMemo(
    () => [
      { id: "self", layer: 0, kind: "node · this one", title: node.node_id, note: node.online ? "online" : "offline", tone: node.online ? "good" : "warn" },
      { id: "broker", layer: 1, kind: "broker", title: (node.broker ?? "none").replace(/^mqtts?:\/\//, ""), note: node.online ? "connected" : "not reached", tone: node.online ? "good" : "warn" },
      ...peers.map((peer): Node => ({ id: `peer ${peer}`, layer: 2, kind: "node", title: peer, note: online.includes(peer) ? "online" : "offline", tone: online.includes(peer) ? "good" : "warn" })),
    ],
    [node.online, node.peers, node.broker],
  ); // prettier-ignore
  const links = [{ from: "self", to: "broker" }, ...peers.map((peer) => ({ from: "broker", to: `peer ${peer}` }))];
  const words = `${node.node_id} is ${node.online ? "online" : "offline"}. Online peers: ${online.join(", ") || "none"}.`;
  return (
    <Panel title="Nodes">
      <Flow title="This node, the broker and the other nodes" description={words} nodes={nodes} links={links} />
    </Panel>
  );
}

function Sending(props: { node: NodeRow }) {
  const { node } = props;
  return (
    <Panel title="Outbox">
      <dl class="facts">
        <dt>Waiting</dt>
        <dd>{plural(node.pending, "event")}</dd>
        <dt>Last empty</dt>
        <dd>
          <Time at={node.last_flush} />
        </dd>
        <dt>Published</dt>
        <dd>
          {plural(node.published, "event")}, {count(node.publish_errors)} refused
        </dd>
        <dt>From others</dt>
        <dd>
          {count(node.applied)} applied, {count(node.beaten)} beaten by newer rows, {count(node.seen)} known already
        </dd>
        <dt>Clocks ahead</dt>
        <dd>{plural(node.ahead, "event")}</dd>
        {node.last_error !== null && (
          <>
            <dt>Last error</dt>
            <dd>
              <Badge tone={node.online ? "plain" : "bad"}>
                <Time at={node.last_error_at} />
              </Badge>{" "}
              {node.last_error}
            </dd>
          </>
        )}
      </dl>
    </Panel>
  );
}

function Comparing(props: { node: NodeRow }) {
  const { node } = props;
  return (
    <Panel title="Comparing">
      <dl class="facts">
        <dt>Last sync</dt>
        <dd>
          <Time at={node.last_compared} />
        </dd>
        <dt>Comparisons</dt>
        <dd>
          {count(node.rounds)}, {count(node.differing)} found something
        </dd>
        <dt>Rows</dt>
        <dd>
          {count(node.pulled)} brought, {count(node.pushed)} given
        </dd>
      </dl>
    </Panel>
  );
}

function Quarantine() {
  const live = useLiveRows<AsideRow>(
    "SELECT id, time, outgoing, key, node_id, sequence, bytes, reason FROM system.replication_quarantine",
  );
  return (
    <Panel title="Set aside">
      <Live of={live} empty={<Empty title="Nothing is set aside">An event that cannot be sent or taken would be here, with the reason.</Empty>}>
        {(rows) => (
          <Grid
            label="Set aside"
            rows={[...rows].reverse()}
            keyOf={(row) => row.id}
            maxHeight="320px"
            columns={[
              { name: "time", cell: (row) => <Time at={row.time} />, width: 16 },
              { name: "way", cell: (row) => (row.outgoing ? "out" : "in"), width: 6 },
              { name: "key", cell: (row) => <code title={row.key ?? ""}>{row.key ?? "–"}</code>, width: 30 },
              { name: "node", cell: (row) => row.node_id ?? "–", width: 14 },
              { name: "size", align: "end", cell: (row) => bytes(row.bytes), width: 10 },
              { name: "reason", cell: (row) => <span title={row.reason}>{row.reason}</span>, width: 40 },
            ]}
          />
        )}
      </Live>
    </Panel>
  );
}

function Tables() {
  const live = useLiveRows<TableRow>("SELECT namespace, name, primary_key, replicate FROM system.tables WHERE replicate");
  const none = (
    <Empty title="No table replicates" sql={may("define tables and topics") ? FIRST_TABLE : undefined}>
      Every node makes the table itself, with the same definition.
    </Empty>
  );
  return (
    <Panel title="Replicated tables">
      <Live of={live} empty={none}>
        {(rows) => (
          <Grid
            label="Replicated tables"
            rows={rows}
            keyOf={(row) => `${row.namespace}.${row.name}`}
            maxHeight="260px"
            columns={[
              { name: "table", cell: (row) => `${row.namespace}.${row.name}`, width: 28 },
              { name: "primary key", cell: (row) => row.primary_key, width: 28 },
            ]}
          />
        )}
      </Live>
    </Panel>
  );
}
