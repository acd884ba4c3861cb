/** How the database is doing, on one page: rates and latencies that move, and everything that could be behind. */

import { useEffect, useMemo } from "preact/hooks";
import { Badge, Failure, Figure, Page, Plot, Time, type Line } from "../components/index.ts";
import { bytes, count, duration, perSecond, short } from "../format.ts";
import { useLiveRows, type LiveRows } from "../live.ts";
import type { Series } from "../series.ts";
import { followVitals, vitals, vitalsVersion, type Metric } from "../vitals.ts";
import { byGroup, isLate, type GroupRow } from "./lag.ts";
import { Groups, LiveQueries, Pipelines, Replication, Topics, type TopicRow } from "./overview_panels.tsx";

interface ProcessRow {
  name: string;
  state: string;
  version: string;
  started_at: string;
}

export default function Overview() {
  const metrics = useMemo(followVitals, []);
  useEffect(() => metrics.close, []);
  const topics = useLiveRows<TopicRow>(
    "SELECT namespace, name, partitions, sources, messages, bytes FROM system.topics",
  );
  const groups = useLiveRows<GroupRow>(
    "SELECT topic, group_id, partition_id, committed, claimed, end_offset, lag, lag_seconds FROM system.topic_groups",
  );
  return (
    <Page title="Overview" about={<About />}>
      <Numbers metrics={metrics} groups={groups} />
      <div class="columns">
        <Plots />
        <Topics live={topics} />
        <Groups live={groups} />
        <Pipelines />
        <Replication />
      </div>
      <LiveQueries />
    </Page>
  );
}

function About() {
  const processes = useLiveRows<ProcessRow>("SELECT name, state, version, started_at FROM system.cluster");
  const [first] = processes.rows.value;
  if (first === undefined) return null;
  return (
    <>
      {first.name} · tablecast {first.version} · started <Time at={first.started_at} />{" "}
      {first.state !== "running" && <Badge tone="bad">{first.state}</Badge>}
    </>
  );
}

function Numbers(props: { metrics: LiveRows<Metric>; groups: LiveRows<GroupRow> }) {
  const state = props.metrics.state.value;
  if (state.is === "ended") return <Failure error={state.error} title="There are no metrics" />;
  void vitalsVersion.value;
  const late = byGroup(props.groups.rows.value).filter(isLate).length;
  const subscriptions = vitals.total("tablecast_live_subscriptions");
  const isStopped = vitals.total("tablecast_writes_stopped") > 0;
  return (
    <dl class="figures">
      {isStopped && <Figure label="Writes" value="stopped" note="the disk failed" tone="bad" />}
      <Figure
        label="Writes"
        value={perSecond(vitals.writes.latest(0))}
        note={`${perSecond(vitals.commits.latest(0))} commits`}
      />
      <Figure label="Commit latency, p99" value={duration(vitals.latency.latest(1))} />
      <Figure
        label="Messages"
        value={perSecond(vitals.messages.latest(0))}
        note={`${perSecond(vitals.messages.latest(1))} read`}
      />
      <Figure
        label="Lag of all groups"
        value={short(vitals.lag.latest(0))}
        note={late > 0 ? `${late} late` : ""}
        tone={late > 0 ? "warn" : "plain"}
      />
      <Figure
        label="Live queries"
        value={count(subscriptions)}
        note={`${count(vitals.total("tablecast_live_connections"))} connected`}
      />
      <Figure label="Store" value={bytes(vitals.total("tablecast_store_bytes"))} />
    </dl>
  );
}

interface Shown {
  title: string;
  series: Series;
  format: (value: number | null) => string;
  lines: Line[];
  /** Without it there is nothing to plot. */
  needs?: "tablecast_pipeline_running" | "replication_online";
}

const SHOWN: Shown[] = [
  { title: "Writes", series: vitals.writes, format: perSecond, lines: twoLines("commands", "rows") },
  { title: "Commit latency", series: vitals.latency, format: duration, lines: twoLines("p50", "p99", "plot-2") },
  { title: "Messages", series: vitals.messages, format: perSecond, lines: twoLines("in", "out") },
  { title: "Lag of all groups", series: vitals.lag, format: short, lines: [{ label: "messages", colour: "plot-4" }] },
  { title: "Live queries", series: vitals.live, format: short, lines: twoLines("subscriptions", "connections") },
  {
    title: "Pipelines",
    series: vitals.pipelines,
    format: short,
    lines: twoLines("running", "lag in messages", "plot-4"),
    needs: "tablecast_pipeline_running",
  },
  {
    title: "Replication",
    series: vitals.replication,
    format: short,
    lines: [{ label: "outbox", colour: "plot-4" }, ...twoLines("peers", "online")],
    needs: "replication_online",
  },
];

function twoLines(first: string, second: string, colour = "plot-3"): Line[] {
  return [
    { label: first, colour: "plot-1" },
    { label: second, colour },
  ];
}

function Plots() {
  void vitalsVersion.value;
  return (
    <>
      {SHOWN.filter(({ needs }) => needs === undefined || vitals.has(needs)).map((shown) => (
        <div class="panel" key={shown.title}>
          <Plot {...shown} version={vitalsVersion.value} />
        </div>
      ))}
    </>
  );
}
