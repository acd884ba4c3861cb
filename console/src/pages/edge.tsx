/** Replication: this node, the others it hears of, what waits to be sent, and what was set aside. */

import { useRef } from "preact/hooks";
import { Badge, Code, Empty, Figure, Grid, Live, Page, Panel, Time, type Tone } from "../components/index.ts";
import { bytes, count, plural } from "../format.ts";
import { useLiveRows, type LiveRows } from "../live.ts";
import { may } from "../session.ts";
import { Flow } from "./flow.tsx";
import type { Node } from "./flow_layout.ts";

interface NodeRow {
  node_id: string;
  broker: string | null;
  online: boolean;
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
}

const NODE = `SELECT node_id, broker, online, pending, given_up, last_flush, last_error, last_error_at, published,
  publish_errors, applied, beaten, seen, ahead, peers, rounds, differing, pulled, pushed, last_compared
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
  const away: Tone = node.online ? "plain" : "warn";
  const aside = useLiveRows<AsideRow>(
    "SELECT id, time, outgoing, key, node_id, sequence, bytes, reason FROM system.replication_quarantine",
  );
  const setAside = aside.rows.value.length;
  const unless = (isGood: boolean, tone: Tone): Tone => (isGood ? "plain" : tone);
  return (
    <>
      <dl class="figures">
        <Figure label="This node" value={wordFor(node.online)} note={node.node_id} tone={away} />
        <Figure label="Outbox" value={count(node.pending)} tone={unless(node.pending === "0", away)} />
        <Figure label="Peers online" value={count(peersOf(node).length)} />
        <Figure label="Set aside" value={count(setAside)} tone={unless(setAside === 0, "warn")} />
        <Figure label="Given up" value={count(node.given_up)} tone={unless(node.given_up === "0", "bad")} />
      </dl>
      <Nodes node={node} />
      <div class="columns">
        <Sending node={node} />
        <Comparing node={node} />
      </div>
      <Quarantine live={aside} />
    </>
  );
}

function wordFor(online: boolean): string {
  return online ? "online" : "offline";
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
  const box = (id: string, layer: number, kind: string, title: string, isThere: boolean): Node => {
    return { id, layer, kind, title, note: wordFor(isThere), tone: isThere ? "good" : "warn" };
  };
  const nodes = [
    box("self", 0, "node · this one", node.node_id, node.online),
    box("broker", 1, "broker", (node.broker ?? "none").replace(/^mqtts?:\/\//, ""), node.online),
    ...peers.map((peer) => box(`peer ${peer}`, 2, "node", peer, online.includes(peer))),
  ];
  const links = [{ from: "self", to: "broker" }, ...peers.map((peer) => ({ from: "broker", to: `peer ${peer}` }))];
  const words = `${node.node_id} is ${wordFor(node.online)}. Online peers: ${online.join(", ") || "none"}.`;
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

function Quarantine(props: { live: LiveRows<AsideRow> }) {
  const none = <Empty title="Nothing is set aside">An event that cannot be sent or taken would be here.</Empty>;
  return (
    <Panel title="Set aside">
      <Live of={props.live} empty={none}>
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
  const live = useLiveRows<TableRow>("SELECT namespace, name, primary_key FROM system.tables WHERE replicate");
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
