/** Messages by place: from an offset or a time on, page by page. The address says which, so that it can be sent on. */

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect } from "preact/hooks";
import { consume, type Consumed, type Message, type Start } from "../api.ts";
import { Empty, Failure, Loading, Panel } from "../components/index.ts";
import { asApiError, type ApiError } from "../errors.ts";
import { count, plural } from "../format.ts";
import { go, href, route, setQuery } from "../router.ts";
import { MessageGrid, MessageView, placeOf } from "./message.tsx";
import type { OffsetRow } from "./topic_data.ts";

const PAGE_MESSAGES = 100;

/** `newest`: the last page. */
type From = "newest" | "earliest" | "offset" | "time";

interface Wanted {
  topic: string;
  partition: number;
  from: From;
  offset: number;
  /** ISO 8601; empty if no time is wanted. */
  time: string;
}

type Found = { is: "loading" } | { is: "failed"; error: ApiError } | { is: "found"; read: Consumed };

export function Browse(props: { topic: string; offsets: OffsetRow[] }) {
  const wanted = wantedOf(props.topic, route.value.query);
  const found = useSignal<Found>({ is: "loading" });
  const open = useSignal<Message | null>(null);
  const turn = useSignal(0);
  const log = props.offsets.find(({ partition_id }) => Number(partition_id) === wanted.partition);
  useEffect(() => {
    const ended = new AbortController();
    open.value = null;
    void read(wanted, log, ended.signal).then((next) => !ended.signal.aborted && (found.value = next));
    return () => ended.abort();
  }, [JSON.stringify(wanted), turn.value]);
  const where = <Where wanted={wanted} partitions={props.offsets.length} onShow={() => (turn.value += 1)} />;
  const show = (message: Message) => (open.value = message);
  return (
    <>
      <Panel title="Messages" actions={where}>
        <Shown wanted={wanted} found={found.value} log={log} open={open.value} onOpen={show} />
      </Panel>
      {open.value !== null && <MessageView message={open.value} onClose={() => (open.value = null)} />}
    </>
  );
}

function wantedOf(topic: string, query: URLSearchParams): Wanted {
  return {
    topic,
    partition: Number(query.get("partition") ?? 0),
    from: (query.get("from") as From | null) ?? "newest",
    offset: Number(query.get("offset") ?? 0),
    time: query.get("time") ?? "",
  };
}

function queryOf({ partition, from, offset, time }: Wanted): Record<string, string> {
  const places: Partial<Record<From, Record<string, string>>> = { offset: { offset: `${offset}` }, time: { time } };
  return { view: "messages", partition: `${partition}`, from, ...places[from] };
}

async function read(wanted: Wanted, log: OffsetRow | undefined, signal: AbortSignal): Promise<Found> {
  const { topic, partition } = wanted;
  try {
    const place = { topic, partition_id: partition, start: startOf(wanted, log) };
    return { is: "found", read: await consume({ ...place, limit: PAGE_MESSAGES, timeout_seconds: 0 }, { signal }) };
  } catch (error) {
    return { is: "failed", error: asApiError(error) };
  }
}

function startOf(wanted: Wanted, log: OffsetRow | undefined): Start {
  switch (wanted.from) {
    case "earliest":
      return { type: "Earliest" };
    case "offset":
      return { type: "Offset", offset: wanted.offset };
    case "time":
      return { type: "Timestamp", timestamp: wanted.time };
    case "newest":
      return { type: "Offset", offset: Math.max(beginOf(log), endOf(log) - PAGE_MESSAGES) };
  }
}

function beginOf(log: OffsetRow | undefined): number {
  return Number(log?.start_offset ?? 0);
}

function endOf(log: OffsetRow | undefined): number {
  return Number(log?.end_offset ?? 0);
}

// --- where to look ---

/** As the fields have it: what is half typed is no offset and no time yet. */
interface Draft {
  partition: string;
  from: From;
  offset: string;
  /** In the browser's own time zone, as its field takes it. */
  time: string;
}

function Where(props: { wanted: Wanted; partitions: number; onShow: () => void }) {
  const { wanted } = props;
  const draft = useSignal(draftOf(wanted));
  // Before the page is drawn: what is typed from then on stays.
  useLayoutEffect(() => void (draft.value = draftOf(wanted)), [JSON.stringify(wanted)]);
  const change = (part: Partial<Draft>) => (draft.value = { ...draft.value, ...part });
  const show = (event: Event) => {
    event.preventDefault();
    setQuery(queryOf(wantedBy(draft.value, wanted.topic)));
    props.onShow();
  };
  const { from, partition, offset, time } = draft.value;
  return (
    <form class="where" onSubmit={show}>
      {props.partitions > 1 && (
        <select
          aria-label="Partition" value={partition}
          onChange={(event) => change({ partition: event.currentTarget.value })}
        >
          {Array.from({ length: props.partitions }, (_, at) => (
            <option key={at} value={`${at}`}>{`partition ${at}`}</option>
          ))}
        </select>
      )}
      <select aria-label="From" value={from} onChange={(event) => change({ from: event.currentTarget.value as From })}>
        <option value="newest">the newest</option>
        <option value="earliest">the earliest</option>
        <option value="offset">an offset</option>
        <option value="time">a time</option>
      </select>
      {from === "offset" && (
        <input
          type="number" min="0" required aria-label="Offset" value={offset}
          onInput={(event) => change({ offset: event.currentTarget.value })}
        />
      )}
      {from === "time" && (
        <input
          type="datetime-local" step="1" required aria-label="Time" value={time}
          onInput={(event) => change({ time: event.currentTarget.value })}
        />
      )}
      <button type="submit" class="primary">
        Show
      </button>
    </form>
  ); // prettier-ignore
}

function draftOf({ partition, from, offset, time }: Wanted): Draft {
  const date = time === "" ? new Date() : new Date(time);
  const local = new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
  return { partition: `${partition}`, from, offset: `${offset}`, time: local };
}

function wantedBy({ partition, from, offset, time }: Draft, topic: string): Wanted {
  const at = from === "time" ? new Date(time).toISOString() : "";
  return { topic, partition: Number(partition), from, offset: Number(offset), time: at };
}

// --- what is there ---

interface ShownProps {
  wanted: Wanted;
  found: Found;
  log: OffsetRow | undefined;
  open: Message | null;
  onOpen: (message: Message) => void;
}

function Shown(props: ShownProps) {
  const { found, wanted } = props;
  if (found.is === "loading") return <Loading what="messages" />;
  if (found.is === "failed") {
    return (
      <Failure error={found.error} title="These messages cannot be shown">
        <a class="button" href={href("topics", [wanted.topic], queryOf({ ...wanted, from: "earliest" }))}>
          From the earliest
        </a>
      </Failure>
    );
  }
  const { messages } = found.read;
  if (messages.length === 0) return <Nothing wanted={wanted} log={props.log} />;
  const inOrder = wanted.from === "newest" ? [...messages].reverse() : messages;
  return (
    <>
      <MessageGrid label="Messages" messages={inOrder} open={props.open && placeOf(props.open)} onOpen={props.onOpen} />
      <Pages wanted={wanted} messages={messages} log={props.log} />
    </>
  );
}

function Nothing(props: { wanted: Wanted; log: OffsetRow | undefined }) {
  if (Number(props.log?.messages ?? 0) > 0) {
    return <Empty title="No messages there">The log ends at {count(props.log!.end_offset)}.</Empty>;
  }
  return <Empty title="No messages yet">Write a row of a source table, for example with Insert above.</Empty>;
}

function Pages(props: { wanted: Wanted; messages: Message[]; log: OffsetRow | undefined }) {
  const first = props.messages[0]!.offset;
  const next = props.messages.at(-1)!.offset + 1;
  const { topic } = props.wanted;
  const goTo = (offset: number) => go("topics", [topic], queryOf({ ...props.wanted, from: "offset", offset }));
  const begin = beginOf(props.log);
  const older = () => goTo(Math.max(begin, first - PAGE_MESSAGES));
  return (
    <div class="pages">
      <span class="faint">
        {plural(props.messages.length, "message")}: offsets {count(first)} to {count(next - 1)}
        {props.wanted.from === "newest" && ", the newest first"}
      </span>
      <span class="actions">
        <button type="button" class="small" disabled={first <= begin} onClick={older}>
          Older
        </button>
        <button type="button" class="small" disabled={next >= endOf(props.log)} onClick={() => goTo(next)}>
          Newer
        </button>
      </span>
    </div>
  );
}
