/** Moving a group, forwards or back. Before it moves, it is said in numbers what that means. */

import { useSignal } from "@preact/signals";
import { call, sql } from "../api.ts";
import { confirm, Panel, toast } from "../components/index.ts";
import { asApiError } from "../errors.ts";
import { count, plural } from "../format.ts";
import { quotedName, quotedText } from "../sql/quote.ts";
import type { GroupRow } from "./lag.ts";
import { useOffsets, type OffsetRow } from "./topic_data.ts";

type To = "EARLIEST" | "LATEST" | "OFFSET" | "TIMESTAMP";

interface Wanted {
  /** Empty: all. */
  partition: string;
  to: To;
  /** As typed. */
  offset: string;
  /** As the browser's input has it, in its time zone. */
  time: string;
}

interface Move {
  partition: string;
  from: number;
  to: number;
  claimed: number;
}

interface ResetProps {
  topic: string;
  group: string;
  partitions: GroupRow[];
}

const SHOWN_MOVES = 8; // partitions told one by one

export function ResetForm(props: ResetProps) {
  const wanted = useSignal<Wanted>({ partition: "", to: "EARLIEST", offset: "0", time: "" });
  const live = useOffsets(props.topic);
  const logs = live.rows.value;
  const change = (part: Partial<Wanted>) => (wanted.value = { ...wanted.value, ...part });
  const { to, partition, offset, time } = wanted.value;
  const submit = (event: Event) => {
    event.preventDefault();
    const fail = (error: unknown) => toast(asApiError(error).message, "bad");
    reset(props, wanted.value, logs).catch(fail);
  };
  return (
    <Panel title="Move the group">
      <form class="panel-body reset" onSubmit={submit}>
        {props.partitions.length > 1 && (
          <label>
            In{" "}
            <select value={partition} onChange={(event) => change({ partition: event.currentTarget.value })}>
              <option value="">all partitions</option>
              {props.partitions.map(({ partition_id }) => (
                <option key={partition_id} value={partition_id}>{`partition ${partition_id}`}</option>
              ))}
            </select>
          </label>
        )}
        <label>
          To{" "}
          <select value={to} onChange={(event) => change({ to: event.currentTarget.value as To })}>
            <option value="EARLIEST">the earliest message</option>
            <option value="LATEST">the end</option>
            <option value="OFFSET">an offset</option>
            <option value="TIMESTAMP">a time</option>
          </select>
        </label>
        {to === "OFFSET" && (
          <input
            type="number" min="0" required aria-label="Offset" value={offset}
            onInput={(event) => change({ offset: event.currentTarget.value })}
          />
        )}
        {to === "TIMESTAMP" && (
          <input
            type="datetime-local" step="1" required aria-label="Time" value={time}
            onInput={(event) => change({ time: event.currentTarget.value })}
          />
        )}
        <button type="submit" class="danger" disabled={live.state.value.is === "loading"}>
          Reset …
        </button>
      </form>
    </Panel>
  ); // prettier-ignore
}

async function reset({ topic, group, partitions }: ResetProps, wanted: Wanted, logs: OffsetRow[]): Promise<void> {
  const moved = partitions.filter(({ partition_id }) => wanted.partition === "" || partition_id === wanted.partition);
  const moves = await movesOf(topic, wanted, moved, logs);
  const body = <Numbers group={group} moves={moves} />;
  if (!(await confirm({ title: `Reset ${group}?`, body, action: "Reset the group", danger: true }))) return;
  const where = wanted.partition === "" ? "" : ` PARTITION ${wanted.partition}`;
  await sql(`RESET GROUP ${quotedText(group)} ON ${quotedName(topic)}${where} TO ${targetOf(wanted)}`);
  toast(`${group} is moved`);
}

function targetOf({ to, offset, time }: Wanted): string {
  if (to === "OFFSET") return `OFFSET ${offset}`;
  return to === "TIMESTAMP" ? `TIMESTAMP ${quotedText(new Date(time).toISOString())}` : to;
}

/** Where each partition is, and where it would be. */
async function movesOf(topic: string, wanted: Wanted, partitions: GroupRow[], logs: OffsetRow[]): Promise<Move[]> {
  const timed = wanted.to === "TIMESTAMP" ? await offsetsAt(topic, new Date(wanted.time)) : new Map<string, number>();
  return partitions.map((row) => {
    const log = logs.find(({ partition_id }) => partition_id === row.partition_id);
    const to = {
      EARLIEST: Number(log?.start_offset),
      LATEST: Number(log?.end_offset),
      OFFSET: Number(wanted.offset),
      TIMESTAMP: timed.get(row.partition_id) ?? 0,
    }[wanted.to];
    return { partition: row.partition_id, from: Number(row.committed), to, claimed: Number(row.claimed) };
  });
}

async function offsetsAt(topic: string, time: Date): Promise<Map<string, number>> {
  type Partition = { partition_id: number; offset_at_timestamp: number };
  const path = `topics/${encodeURIComponent(topic)}?timestamp=${encodeURIComponent(time.toISOString())}`;
  const { partitions } = await call<{ partitions: Partition[] }>("GET", path);
  return new Map(partitions.map((found) => [`${found.partition_id}`, found.offset_at_timestamp]));
}

function Numbers(props: { group: string; moves: Move[] }) {
  const { moves } = props;
  const again = moves.reduce((sum, { from, to }) => sum + Math.max(0, from - to), 0);
  const passed = moves.reduce((sum, { from, to }) => sum + Math.max(0, to - from), 0);
  const claimed = moves.reduce((sum, move) => sum + move.claimed, 0);
  return (
    <>
      <p>
        {props.group} moves in {plural(moves.length, "partition")}:{" "}
        {moves.slice(0, SHOWN_MOVES).map(inWords).join("; ")}
        {moves.length > SHOWN_MOVES && ` and ${count(moves.length - SHOWN_MOVES)} more`}.
      </p>
      <ul>
        {again > 0 && <li>{plural(again, "message")} will be given again, done or not.</li>}
        {passed > 0 && <li>{plural(passed, "message")} will not be given to this group any more.</li>}
        {again + passed === 0 && <li>No message is given again, and none is passed over.</li>}
        {claimed > 0 && <li>{plural(claimed, "message")} in consumers' hands: their claims are forgotten.</li>}
      </ul>
    </>
  );
}

function inWords({ partition, from, to }: Move): string {
  return `partition ${partition} from ${count(from)} to ${count(to)}`;
}
