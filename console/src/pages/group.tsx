/** One group: where it is in each partition, its lag over time, what its consumers hold, its dead letters. */

import { Badge, Empty, Failure, Figure, Grid, Live, Loading, Page, Panel, Plot } from "../components/index.ts";
import { count, duration, short } from "../format.ts";
import { useLiveRows, type LiveRows } from "../live.ts";
import { href } from "../router.ts";
import { may } from "../session.ts";
import { quotedText } from "../sql/quote.ts";
import { Clock } from "./clock.tsx";
import { Letters } from "./group_letters.tsx";
import { ResetForm } from "./group_reset.tsx";
import { LagBar } from "./lag_bar.tsx";
import { byGroup, isLate, type GroupLag, type GroupRow } from "./lag.ts";
import { useSampled } from "./sampled.ts";
import { useTopic } from "./topic_data.ts";
import "./groups.css";

interface ClaimRow {
  partition_id: string;
  start_offset: string;
  end_offset: string;
  messages: string;
  state: "claimed" | "returned";
  consumer: string | null;
  deadline: string | null;
  deliveries: string;
  reason: string | null;
}

export default function GroupPage(props: { topic: string; group: string }) {
  const { topic, group } = props;
  const live = useLiveRows<GroupRow>(
    `SELECT topic, group_id, partition_id, committed, claimed, end_offset, lag, lag_seconds FROM system.topic_groups
      WHERE topic = ? AND group_id = ?`,
    [topic, group],
  );
  const [topicRow] = useTopic(topic).rows.value;
  const state = live.state.value;
  const partitions = [...live.rows.value].sort((a, b) => Number(a.partition_id) - Number(b.partition_id));
  return (
    <Page
      title={group}
      about={
        <>
          <a href={href("groups")}>All groups</a> · reads <a href={href("topics", [topic])}>{topic}</a>
        </>
      }
    >
      {state.is === "ended" && <Failure error={state.error} />}
      {state.is === "loading" && <Loading />}
      {state.is === "live" && partitions.length === 0 && <NoGroup topic={topic} group={group} />}
      {partitions.length > 0 && (
        <>
          <Figures partitions={partitions} />
          <div class="columns">
            <Partitions partitions={partitions} />
            <LagOverTime live={live} name={`${topic} ${group}`} />
          </div>
          <Claims topic={topic} group={group} />
          {topicRow?.dead_letter && <Letters topic={topic} group={group} deadLetter={topicRow.dead_letter} />}
          {topicRow && topicRow.dead_letter === null && <NoLetters topic={topic} />}
          {may("reset groups") && <ResetForm topic={topic} group={group} partitions={partitions} />}
        </>
      )}
    </Page>
  );
}

function NoGroup({ topic, group }: { topic: string; group: string }) {
  const first = `CONSUME FROM ${topic} GROUP ${quotedText(group)} LIMIT 10;`;
  return (
    <section class="panel" aria-label="Group">
      <Empty title={`Nobody has read ${topic} as ${group} yet`} sql={first}>
        A group begins with its first consume.
      </Empty>
    </section>
  );
}

function Figures(props: { partitions: GroupRow[] }) {
  const group = byGroup(props.partitions)[0]!;
  return (
    <dl class="figures">
      <Figure label="Lag" value={count(group.lag)} tone={isLate(group) ? "warn" : "plain"} />
      <Figure label="Behind" value={behind(group)} />
      <Figure label="In consumers' hands" value={count(group.claimed)} />
      <Figure label="Partitions" value={count(group.partitions)} />
    </dl>
  );
}

/** Retention may have taken the message that would tell. */
function behind({ lag, lag_seconds }: GroupLag): string {
  if (lag === 0) return "–";
  return lag_seconds === null ? "unknown" : duration(lag_seconds);
}

function Partitions(props: { partitions: GroupRow[] }) {
  const most = Math.max(...props.partitions.map(({ lag }) => Number(lag)));
  return (
    <Panel title="Partitions">
      <Grid
        label="Partitions"
        rows={props.partitions}
        keyOf={(row) => row.partition_id}
        maxHeight="260px"
        columns={[
          { name: "partition", align: "end", cell: (row) => row.partition_id, width: 12 },
          { name: "committed", align: "end", cell: (row) => count(row.committed), width: 12 },
          { name: "claimed", align: "end", cell: (row) => count(row.claimed), width: 10 },
          { name: "end", align: "end", cell: (row) => count(row.end_offset), width: 10 },
          { name: "lag", cell: (row) => <LagBar row={{ ...row, lag: Number(row.lag) }} most={most} />, width: 16 },
        ]}
      />
    </Panel>
  );
}

/** While the page was open. */
function LagOverTime(props: { live: LiveRows<GroupRow>; name: string }) {
  const lag = useSampled(`group ${props.name}`, 2, props.live.rows, (rows) => {
    const [group] = byGroup(rows);
    return group === undefined ? null : [group.lag, group.claimed];
  });
  return (
    <div class="panel">
      <Plot
        {...lag} title="Lag over time" format={short}
        lines={[{ label: "lag", colour: "plot-4" }, { label: "claimed", colour: "plot-1" }]}
      />
    </div>
  ); // prettier-ignore
}

function Claims(props: { topic: string; group: string }) {
  const live = useLiveRows<ClaimRow>(
    `SELECT partition_id, start_offset, end_offset, messages, state, consumer, deadline, deliveries, reason
      FROM system.topic_claims WHERE topic = ? AND group_id = ?`,
    [props.topic, props.group],
  );
  const none = <Empty title="No open claims">Nothing is in a consumer's hands, and nothing has come back.</Empty>;
  return (
    <Panel title="Open claims">
      <Live of={live} empty={none}>
        {(rows) => (
          <Grid
            label="Open claims"
            rows={rows}
            keyOf={(row) => `${row.partition_id}:${row.start_offset}`}
            maxHeight="260px"
            columns={[
              { name: "partition", align: "end", cell: (row) => row.partition_id, width: 12 },
              { name: "offsets", cell: offsetsOf, width: 18 },
              { name: "messages", align: "end", cell: (row) => count(row.messages), width: 12 },
              { name: "state", cell: (row) => <ClaimState row={row} />, width: 12 },
              { name: "consumer", cell: (row) => row.consumer ?? "–", width: 22 },
              { name: "until", cell: (row) => (row.deadline === null ? "–" : <Clock at={row.deadline} />), width: 15 },
              { name: "given", align: "end", cell: (row) => count(row.deliveries), width: 8 },
              { name: "reason", cell: (row) => row.reason ?? "", width: 24 },
            ]}
          />
        )}
      </Live>
    </Panel>
  );
}

function offsetsOf(row: ClaimRow): string {
  return `${count(row.start_offset)} to ${count(Number(row.end_offset) - 1)}`;
}

function ClaimState(props: { row: ClaimRow }) {
  return <Badge tone={props.row.state === "claimed" ? "accent" : "warn"}>{props.row.state}</Badge>;
}

function NoLetters(props: { topic: string }) {
  const isOffered = may("define tables and topics");
  const define = `ALTER TOPIC ${props.topic} SET (max_deliveries = 5, dead_letter = '${props.topic}_dlq');`;
  return (
    <Panel title="Dead letters">
      <Empty title={`${props.topic} has no dead-letter topic`} sql={isOffered ? define : undefined}>
        A message that fails comes back for ever. With max_deliveries it is set aside after so many attempts.
      </Empty>
    </Panel>
  );
}
