/** Groups: how far behind each is, or one with its claims and dead letters. */

import { useSignal } from "@preact/signals";
import { Empty, Grid, Live, Page, Panel } from "../components/index.ts";
import { count, duration } from "../format.ts";
import { useLiveRows } from "../live.ts";
import { go, href, route } from "../router.ts";
import { Filter, matches } from "./filter.tsx";
import GroupPage from "./group.tsx";
import { LagBar } from "./lag_bar.tsx";
import { byGroup, type GroupLag, type GroupRow } from "./lag.ts";

const GROUPS = `SELECT topic, group_id, partition_id, committed, claimed, end_offset, lag, lag_seconds
  FROM system.topic_groups`;
const FIRST_GROUP = "CONSUME FROM app.order_events GROUP 'billing' LIMIT 10;";

export default function Groups() {
  const [topic, group] = route.value.path;
  if (topic === undefined || group === undefined) return <GroupList />;
  return <GroupPage key={`${topic} ${group}`} topic={topic} group={group} />;
}

function GroupList() {
  const live = useLiveRows<GroupRow>(GROUPS);
  const filter = useSignal("");
  const none = (
    <Empty title="No groups yet" sql={FIRST_GROUP}>
      A group is there when somebody first consumes a topic with its name.
    </Empty>
  );
  return (
    <Page
      title="Groups"
      about="Consumers that read a topic together, each message given to one of them until it is acknowledged."
      actions={<Filter text={filter} />}
    >
      <Panel title="All groups">
        <Live of={live} empty={none}>
          {(rows) => <GroupGrid rows={matching(byGroup(rows), filter.value)} />}
        </Live>
      </Panel>
    </Page>
  );
}

function matching(groups: GroupLag[], text: string): GroupLag[] {
  return groups.filter(({ topic, group_id }) => matches(`${topic} ${group_id}`, text));
}

function hrefOf({ topic, group_id }: GroupLag): string {
  return href("groups", [topic, group_id]);
}

function GroupGrid(props: { rows: GroupLag[] }) {
  const most = Math.max(...props.rows.map(({ lag }) => lag));
  if (props.rows.length === 0) return <Empty title="No group has a name like that" />;
  return (
    <Grid
      label="Groups"
      rows={props.rows}
      keyOf={(row) => `${row.topic} ${row.group_id}`}
      onOpen={(row) => go("groups", [row.topic, row.group_id])}
      maxHeight="70vh"
      columns={[
        { name: "group", cell: (row) => <a href={hrefOf(row)}>{row.group_id}</a>, width: 20 },
        { name: "topic", cell: (row) => row.topic, width: 20 },
        { name: "partitions", align: "end", cell: (row) => count(row.partitions), width: 11 },
        { name: "claimed", align: "end", cell: (row) => count(row.claimed), width: 10 },
        { name: "lag", align: "end", cell: (row) => <LagBar row={row} most={most} />, width: 18 },
        { name: "behind", align: "end", cell: (row) => (row.lag > 0 ? duration(row.lag_seconds) : "–"), width: 13 },
      ]}
    />
  );
}
