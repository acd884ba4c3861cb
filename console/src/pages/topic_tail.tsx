/** The tail of a topic: the newest message on top. It stands still while nobody can see it. */

import { useComputed, useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo } from "preact/hooks";
import type { ComponentChildren } from "preact";
import type { Message } from "../api.ts";
import { Badge, Empty, Failure, Panel } from "../components/index.ts";
import { count, perSecond, plural } from "../format.ts";
import { MAX_TAILED_PARTITIONS, Tail, type TailSight } from "../tail.ts";
import { MessageGrid, MessageView, placeOf } from "./message.tsx";
import type { OffsetRow } from "./topic_data.ts";

const ALL = "all";

export function TailView(props: { topic: string; offsets: OffsetRow[] }) {
  const isMany = props.offsets.length > MAX_TAILED_PARTITIONS;
  const chosen = useSignal(isMany ? "0" : ALL);
  return (
    <Following
      key={chosen.value}
      topic={props.topic}
      offsets={props.offsets.filter(({ partition_id }) => chosen.value === ALL || partition_id === chosen.value)}
      choice={props.offsets.length > 1 && <Choice offsets={props.offsets} isMany={isMany} chosen={chosen} />}
    />
  );
}

function Choice(props: { offsets: OffsetRow[]; isMany: boolean; chosen: { value: string } }) {
  const choose = (event: { currentTarget: { value: string } }) => (props.chosen.value = event.currentTarget.value);
  return (
    <select aria-label="Partition" value={props.chosen.value} onChange={choose}>
      {!props.isMany && <option value={ALL}>all partitions</option>}
      {props.offsets.map(({ partition_id }) => (
        <option key={partition_id} value={partition_id}>{`partition ${partition_id}`}</option>
      ))}
    </select>
  );
}

function Following(props: { topic: string; offsets: OffsetRow[]; choice: ComponentChildren }) {
  const tail = useMemo(() => new Tail(props.topic, props.offsets.map(logOf)), []);
  const isPaused = useSignal(false);
  const isHidden = useHidden();
  const isFollowing = useComputed(() => !isPaused.value && !isHidden.value).value;
  const open = useSignal<Message | null>(null);
  // Before the page is drawn: when it says "paused", nothing comes any more.
  useLayoutEffect(() => {
    if (isFollowing) tail.start();
    return () => tail.stop();
  }, [isFollowing]);
  const sight = tail.sight.value;
  const actions = (
    <>
      <Pace sight={sight} isFollowing={isFollowing} />
      {props.choice}
      <button type="button" class="small" onClick={() => (isPaused.value = !isPaused.value)}>
        {isPaused.value ? "Go on" : "Pause"}
      </button>
    </>
  );
  return (
    <>
      <Panel title="Tail" actions={actions}>
        {sight.error !== null && <Failure error={sight.error} title="The tail has stopped" />}
        {sight.messages.length === 0 ? (
          <Empty title="Waiting for messages">They appear here the moment they are committed.</Empty>
        ) : (
          <MessageGrid
            label="Tail"
            messages={sight.messages}
            keepsPlace
            open={open.value && placeOf(open.value)}
            onOpen={(message) => (open.value = message)}
          />
        )}
      </Panel>
      {open.value !== null && <MessageView message={open.value} onClose={() => (open.value = null)} />}
    </>
  );
}

function logOf({ partition_id, start_offset, end_offset }: OffsetRow) {
  return { partition: Number(partition_id), start: Number(start_offset), end: Number(end_offset) };
}

/** How fast, and how much of it. */
function Pace(props: { sight: TailSight; isFollowing: boolean }) {
  const { sight } = props;
  return (
    <span class="faint" role="status" aria-live="off" data-testid="tail-pace">
      <Badge tone={props.isFollowing ? "good" : "plain"}>{props.isFollowing ? "following" : "paused"}</Badge>{" "}
      {perSecond(sight.perSecond)}
      {sight.isSampled && ", showing a sample"}
      {sight.skipped > 0 && ` · ${count(sight.shown)} shown, ${plural(sight.skipped, "message")} left out`}
    </span>
  );
}

/** Whether the tab is out of sight. */
function useHidden() {
  const isHidden = useSignal(document.visibilityState === "hidden");
  useEffect(() => {
    const look = () => (isHidden.value = document.visibilityState === "hidden");
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, []);
  return isHidden;
}
