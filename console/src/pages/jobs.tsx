/** What the server does by itself, and loads that are under way. */

import { Badge, Empty, Grid, Live, Page, Panel, Time, type Tone } from "../components/index.ts";
import { bytes, count } from "../format.ts";
import { useLiveRows } from "../live.ts";

interface JobRow {
  name: string;
  status: string;
  started_at: string | null;
  finished_at: string | null;
  runs: string;
  removed: string;
  bytes_freed: string;
  error: string | null;
}

interface LoadRow {
  load_id: string;
  table_name: string;
  writer_id: string;
  batch_id: string;
  kind: string;
  mode: string;
  state: string;
  parts: string;
  bytes: string;
  user_id: string | null;
  created_at: string;
  active_at: string;
}

const TONES: Record<string, Tone> = { running: "accent", failed: "bad" };

export default function Jobs() {
  return (
    <Page title="Jobs" about="Work that the server does by itself, and loads of many rows that are not committed yet.">
      <AllJobs />
      <Loads />
    </Page>
  );
}

function AllJobs() {
  const live = useLiveRows<JobRow>(
    "SELECT name, status, started_at, finished_at, runs, removed, bytes_freed, error FROM system.jobs",
  );
  return (
    <Panel title="Jobs">
      <Live of={live} empty={<Empty title="This server runs no jobs" />}>
        {(rows) => (
          <Grid
            label="Jobs"
            rows={rows}
            keyOf={(row) => row.name}
            columns={[
              { name: "job", cell: (row) => row.name, width: 20 },
              { name: "status", cell: (row) => <Badge tone={TONES[row.status]}>{row.status}</Badge>, width: 12 },
              { name: "started", cell: (row) => <Time at={row.started_at} />, width: 16 },
              { name: "finished", cell: (row) => <Time at={row.finished_at} />, width: 16 },
              { name: "runs", align: "end", cell: (row) => count(row.runs), width: 10 },
              { name: "removed", align: "end", cell: (row) => count(row.removed), width: 11 },
              { name: "freed", align: "end", cell: (row) => bytes(row.bytes_freed), width: 11 },
              { name: "error", cell: (row) => <span title={row.error ?? ""}>{row.error ?? ""}</span>, width: 30 },
            ]}
          />
        )}
      </Live>
    </Panel>
  );
}

function Loads() {
  const live = useLiveRows<LoadRow>(
    `SELECT load_id, table_name, writer_id, batch_id, kind, mode, state, parts, bytes, user_id, created_at, active_at
      FROM system.loads`,
  );
  const none = (
    <Empty title="No loads are under way">
      COPY, Spark and pipelines write many rows as one commit: until then they are here.
    </Empty>
  );
  return (
    <Panel title="Loads">
      <Live of={live} empty={none}>
        {(rows) => (
          <Grid
            label="Loads"
            rows={rows}
            keyOf={(row) => row.load_id}
            columns={[
              { name: "table", cell: (row) => row.table_name, width: 24 },
              { name: "state", cell: (row) => <Badge>{row.state}</Badge>, width: 12 },
              { name: "kind", cell: (row) => `${row.kind} ${row.mode}`, width: 16 },
              { name: "writer", cell: (row) => row.writer_id, width: 24 },
              { name: "batch", align: "end", cell: (row) => row.batch_id, width: 9 },
              { name: "parts", align: "end", cell: (row) => count(row.parts), width: 9 },
              { name: "size", align: "end", cell: (row) => bytes(row.bytes), width: 10 },
              { name: "by", cell: (row) => row.user_id ?? "–", width: 12 },
              { name: "last active", cell: (row) => <Time at={row.active_at} />, width: 16 },
            ]}
          />
        )}
      </Live>
    </Panel>
  );
}
