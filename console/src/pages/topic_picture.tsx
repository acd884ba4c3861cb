/** The picture of a topic: tables, what of them goes in, the topic, who reads it. */

import { Empty, Panel } from "../components/index.ts";
import { count, plural } from "../format.ts";
import { useLiveRows } from "../live.ts";
import { href } from "../router.ts";
import { may } from "../session.ts";
import { Flow } from "./flow.tsx";
import type { Link, Node } from "./flow_layout.ts";
import { byGroup, isLate, type GroupLag, type GroupRow } from "./lag.ts";
import { useSources, type SourceRow, type TopicRow } from "./topic_data.ts";

interface ReaderRow {
  name: string;
  inputs: string;
  state: string;
  lag: string | null;
}

export function TopicPicture(props: { name: string; topic: TopicRow; groups: GroupRow[] }) {
  const { name } = props;
  const sources = useSources(name).rows.value;
  const pipelines = useLiveRows<ReaderRow>("SELECT name, inputs, state, lag FROM system.pipelines").rows.value;
  const readers = pipelines.filter(({ inputs }) => inputs.split(", ").includes(name));
  const groups = byGroup(props.groups);
  const nodes = [
    ...sources.flatMap((source) => sourceNodes(source)),
    { id: "topic", layer: 2, kind: "topic", title: name, note: plural(props.topic.messages, "message") },
    ...groups.map((group) => groupNode(group)),
    ...readers.map((reader) => readerNode(reader)),
  ];
  return (
    <Panel title="From tables to groups">
      <Flow
        title={`What feeds ${name}, and who reads it`}
        description={inWords(name, sources, groups, readers)}
        nodes={uniqueOf(nodes)}
        links={linksOf(sources, groups, readers)}
      />
      {sources.length === 0 && <NoSources name={name} />}
    </Panel>
  );
}

function filterId({ table_name, ops }: SourceRow): string {
  return `filter ${table_name} ${ops}`;
}

function sourceNodes(source: SourceRow): Node[] {
  const where = source.filter === null ? "every row" : `WHERE ${source.filter}`;
  const by = source.partition_by === null ? "" : ` by ${source.partition_by}`;
  return [
    { id: `table ${source.table_name}`, layer: 0, kind: "table", title: source.table_name },
    { id: filterId(source), layer: 1, kind: `filter · ${source.payload}${by}`, title: source.ops, note: where },
  ];
}

function groupNode(group: GroupLag): Node {
  return {
    id: `group ${group.group_id}`,
    layer: 3,
    kind: "group",
    title: group.group_id,
    note: group.lag === 0 ? "nothing to do" : `${count(group.lag)} behind`,
    tone: isLate(group) ? "warn" : "plain",
    href: href("groups", [group.topic, group.group_id]),
  };
}

function readerNode(reader: ReaderRow): Node {
  const note = reader.lag === null ? reader.state : `${reader.state}, ${count(reader.lag)} behind`;
  const link = href("pipelines", [reader.name]);
  return { id: `pipeline ${reader.name}`, layer: 3, kind: "pipeline", title: reader.name, note, href: link };
}

function uniqueOf(nodes: Node[]): Node[] {
  return [...new Map(nodes.map((node) => [node.id, node])).values()];
}

function linksOf(sources: SourceRow[], groups: GroupLag[], readers: ReaderRow[]): Link[] {
  return [
    ...sources.map((source) => ({ from: `table ${source.table_name}`, to: filterId(source) })),
    ...sources.map((source) => ({ from: filterId(source), to: "topic" })),
    ...groups.map(({ group_id }) => ({ from: "topic", to: `group ${group_id}` })),
    ...readers.map(({ name }) => ({ from: "topic", to: `pipeline ${name}` })),
  ];
}

function inWords(name: string, sources: SourceRow[], groups: GroupLag[], readers: ReaderRow[]): string {
  const from = sources.map(({ table_name, ops, filter, payload }) => {
    return `${ops} of ${table_name}${filter === null ? "" : ` where ${filter}`} as ${payload}`;
  });
  const reading = groups.map(({ group_id }) => `group ${group_id}`);
  const to = [...reading, ...readers.map((reader) => `pipeline ${reader.name}`)];
  return `${name} gets ${from.join("; ") || "nothing: it has no source"}. It is read by ${to.join(", ") || "nobody"}.`;
}

function NoSources(props: { name: string }) {
  const example = `ALTER TOPIC ${props.name} ADD SOURCE app.orders ON ANY;`;
  return (
    <Empty title="No table feeds this topic" sql={may("define tables and topics") ? example : undefined}>
      It holds dead letters only, or waits for its first source.
    </Empty>
  );
}
