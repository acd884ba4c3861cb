/** One topic: where its messages come from and who reads them, and views of the messages themselves. */

import type { ComponentChildren } from "preact";
import { sql } from "../api.ts";
import { asApiError } from "../errors.ts";
import { Bar, confirm, Empty, Failure, Figure, Grid, Loading, Page, Panel, toast } from "../components/index.ts";
import { bytes, count, duration, perSecond, plural } from "../format.ts";
import { useLiveRows } from "../live.ts";
import { href, route } from "../router.ts";
import { may } from "../session.ts";
import { quotedName } from "../sql/quote.ts";
import { byGroup, type GroupRow } from "./lag.ts";
import { Tabs } from "./tabs.tsx";
import { Browse } from "./topic_browse.tsx";
import { useOffsets, useSources, useTopic, useTopicRates, type OffsetRow, type TopicRow } from "./topic_data.ts";
import { InsertForm } from "./topic_insert.tsx";
import { TopicPicture } from "./topic_picture.tsx";
import { TailView } from "./topic_tail.tsx";
import "./topics.css";

const VIEWS = { messages: "Messages", tail: "Tail" };

export default function TopicPage(props: { name: string }) {
  const { name } = props;
  const topics = useTopic(name);
  const offsets = useOffsets(name);
  const groups = useLiveRows<GroupRow>(
    `SELECT topic, group_id, partition_id, committed, claimed, end_offset, lag, lag_seconds FROM system.topic_groups
      WHERE topic = ?`,
    [name],
  );
  const [topic] = topics.rows.value;
  const state = topics.state.value;
  if (state.is === "ended") return <Missing name={name}><Failure error={state.error} /></Missing>;
  if (state.is === "loading" || offsets.state.value.is === "loading") return <Missing name={name}><Loading /></Missing>;
  if (topic === undefined) {
    return (
      <Missing name={name}>
        <Empty title={`There is no topic ${name}`}>
          It may have been dropped. <a href={href("topics")}>All topics</a>
        </Empty>
      </Missing>
    );
  }
  const ends = [...offsets.rows.value].sort((a, b) => Number(a.partition_id) - Number(b.partition_id));
  const isKnown = groups.state.value.is !== "loading";
  const lag = isKnown ? byGroup(groups.rows.value).reduce((sum, group) => sum + group.lag, 0) : null;
  return (
    <Page
      title={name}
      about={<Rules topic={topic} />}
      actions={may("clear topics") && <ClearButton name={name} messages={Number(topic.messages)} lag={lag} />}
    >
      <Figures topic={topic} name={name} groups={groups.rows.value} />
      <TopicPicture name={name} topic={topic} groups={groups.rows.value} />
      <Partitions offsets={ends} />
      <Views name={name} offsets={ends} />
    </Page>
  );
}

function Missing(props: { name: string; children: ComponentChildren }) {
  return (
    <Page title={props.name}>
      <section class="panel" aria-label="Topic">
        {props.children}
      </section>
    </Page>
  );
}

/** What was said when it was made. */
function Rules(props: { topic: TopicRow }) {
  const { topic } = props;
  const rules = [
    topic.alias !== null && `also called ${topic.alias}`,
    Number(topic.retention_seconds) > 0 && `kept for ${duration(Number(topic.retention_seconds))}`,
    Number(topic.retention_max_bytes) > 0 && `at most ${bytes(topic.retention_max_bytes)} a partition`,
    Number(topic.dedup_window_seconds) > 0 && `no repeats within ${duration(Number(topic.dedup_window_seconds))}`,
    Number(topic.max_deliveries) > 0 && `given at most ${plural(topic.max_deliveries, "time")}`,
  ].filter((rule) => rule !== false);
  return (
    <>
      <a href={href("topics")}>All topics</a>
      {rules.map((rule) => ` · ${rule}`)}
      {topic.dead_letter !== null && (
        <>
          {" "}
          · dead letters go to <a href={href("topics", [topic.dead_letter])}>{topic.dead_letter}</a>
        </>
      )}
    </>
  );
}

function Figures(props: { topic: TopicRow; name: string; groups: GroupRow[] }) {
  const { topic, groups } = props;
  const rate = useTopicRates().value.of(props.name);
  return (
    <dl class="figures">
      <Figure label="Messages in" value={perSecond(rate.in)} />
      <Figure label="Messages out" value={perSecond(rate.out)} />
      <Figure label="Kept" value={count(topic.messages)} note={bytes(topic.bytes)} />
      <Figure label="Partitions" value={count(topic.partitions)} />
      <Figure label="Groups" value={count(byGroup(groups).length)} />
    </dl>
  );
}

function Partitions(props: { offsets: OffsetRow[] }) {
  const most = Math.max(...props.offsets.map(({ messages }) => Number(messages)));
  return (
    <Panel title="Partitions">
      <Grid
        label="Partitions"
        rows={props.offsets}
        keyOf={(row) => row.partition_id}
        maxHeight="240px"
        columns={[
          { name: "partition", align: "end", cell: (row) => row.partition_id, width: 11 },
          { name: "first offset", align: "end", cell: (row) => count(row.start_offset), width: 13 },
          { name: "end offset", align: "end", cell: (row) => count(row.end_offset), width: 13 },
          { name: "messages", align: "end", cell: (row) => count(row.messages), width: 12 },
          {
            name: "share",
            cell: (row) => <Bar value={Number(row.messages)} max={most} label={plural(row.messages, "message")} />,
            width: 16,
          },
        ]}
      />
    </Panel>
  );
}

function Views(props: { name: string; offsets: OffsetRow[] }) {
  const view = route.value.query.get("view") ?? "messages";
  const sources = useSources(props.name);
  const tabs = may("write shared tables") ? { ...VIEWS, insert: "Insert" } : VIEWS;
  return (
    <div class="views">
      <Tabs label="Views of the messages" tabs={tabs} current={view} />
      {view === "tail" && <TailView topic={props.name} offsets={props.offsets} />}
      {view === "insert" && <InsertForm topic={props.name} sources={sources} />}
      {view !== "tail" && view !== "insert" && <Browse topic={props.name} offsets={props.offsets} />}
    </div>
  );
}

/** `lag` is null as long as it is not known: what nobody was told would be cleared. */
function ClearButton(props: { name: string; messages: number; lag: number | null }) {
  const { name, messages, lag } = props;
  const clear = async (lag: number) => {
    const body = (
      <>
        <p>
          {plural(messages, "message")} of {name} are removed for good. Offsets go on where they are.
        </p>
        {lag > 0 && <p>Groups are not done with {plural(lag, "message")} of them, and will be told so.</p>}
      </>
    );
    const action = `Remove ${plural(messages, "message")}`;
    if (!(await confirm({ title: "Clear this topic?", body, action, danger: true }))) return;
    try {
      await sql(`CLEAR TOPIC ${quotedName(name)}`);
      toast(`${name} is empty`);
    } catch (error) {
      toast(asApiError(error).message, "bad");
    }
  };
  return (
    <button
      type="button"
      class="danger"
      disabled={messages === 0 || lag === null}
      onClick={() => lag !== null && void clear(lag)}
    >
      Clear …
    </button>
  );
}
