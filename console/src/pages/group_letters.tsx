/** The dead letters of a group: looking at them, and sending them back when the cause is mended. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { consume, sql, type Message } from "../api.ts";
import { confirm, Empty, Failure, Grid, Live, Loading, Panel, Time, toast } from "../components/index.ts";
import { asApiError, type ApiError } from "../errors.ts";
import { count, plural } from "../format.ts";
import { useLiveRows } from "../live.ts";
import { href } from "../router.ts";
import { may } from "../session.ts";
import { quotedName } from "../sql/quote.ts";
import { letterOf, MessageView, placeOf, type Letter } from "./message.tsx";
import { useOffsets, type OffsetRow } from "./topic_data.ts";

interface Dead {
  message: Message;
  letter: Letter;
}

/** A run of letters that were sent back: from, up to and without. */
interface Run {
  partition_id: string;
  start_offset: string;
  end_offset: string;
}

const SHOWN_LETTERS = 200; // of each partition, the newest; the topic's own page has them all
const REDRIVEN = "SELECT partition_id, start_offset, end_offset FROM system.topic_redriven WHERE topic = ?";

export function Letters(props: { topic: string; group: string; deadLetter: string }) {
  const offsets = useOffsets(props.deadLetter);
  const none = <Empty title={`There is no topic ${props.deadLetter}`}>It is made with its first dead letter.</Empty>;
  return (
    <Live of={offsets} empty={<Panel title="Dead letters">{none}</Panel>}>
      {(logs) => <Kept {...props} logs={logs} />}
    </Live>
  );
}

function Kept(props: { topic: string; group: string; deadLetter: string; logs: OffsetRow[] }) {
  const { topic, group, deadLetter, logs } = props;
  const found = useSignal<Dead[] | null>(null);
  const error = useSignal<ApiError | null>(null);
  const open = useSignal<Message | null>(null);
  const runs = useLiveRows<Run>(REDRIVEN, [deadLetter]).rows.value;
  const ends = logs.map(({ start_offset, end_offset }) => `${start_offset}-${end_offset}`).join();
  useEffect(() => {
    const ended = new AbortController();
    readLetters(deadLetter, logs, ended.signal).then(
      (letters) => {
        found.value = letters;
        error.value = null;
      },
      (caught) => ended.signal.aborted || (error.value = asApiError(caught)),
    );
    return () => ended.abort();
  }, [ends]);
  const waiting = found.value?.filter(({ message }) => !isSentBack(message, runs)) ?? [];
  const letters = found.value?.filter(({ letter }) => letter.topic === topic && letter.group === group);
  const all = waiting.length === 0 ? null : () => redriveAll(deadLetter, waitingIn(logs, runs), waiting);
  return (
    <>
      <Panel title="Dead letters" actions={<Actions topic={deadLetter} onAll={all} />}>
        {error.value !== null && <Failure error={error.value} />}
        {letters === undefined && error.value === null && <Loading what="dead letters" />}
        {letters?.length === 0 && (
          <Empty title="No dead letters of this group">A message that failed too often would be here.</Empty>
        )}
        {letters !== undefined && letters.length > 0 && (
          <LetterGrid
            letters={letters}
            runs={runs}
            onOpen={(message) => (open.value = message)}
            onRedrive={(dead) => redriveOne(deadLetter, dead)}
          />
        )}
      </Panel>
      {open.value !== null && <MessageView message={open.value} onClose={() => (open.value = null)} />}
    </>
  );
}

function isSentBack({ partition_id, offset }: Message, runs: Run[]): boolean {
  const own = runs.filter((run) => Number(run.partition_id) === partition_id);
  return own.some((run) => Number(run.start_offset) <= offset && offset < Number(run.end_offset));
}

/** Letters that are kept and were not sent back yet. */
function waitingIn(logs: OffsetRow[], runs: Run[]): number {
  return logs.reduce((sum, log) => {
    const own = runs.filter((run) => run.partition_id === log.partition_id);
    return sum + own.reduce((left, run) => left - overlap(log, run), Number(log.messages));
  }, 0);
}

function overlap(a: Omit<Run, "partition_id">, b: Omit<Run, "partition_id">): number {
  const start = Math.max(Number(a.start_offset), Number(b.start_offset));
  return Math.max(0, Math.min(Number(a.end_offset), Number(b.end_offset)) - start);
}

function Actions(props: { topic: string; onAll: (() => Promise<void>) | null }) {
  return (
    <>
      <a href={href("topics", [props.topic])}>{props.topic}</a>
      {may("redrive dead letters") && props.onAll !== null && (
        <button type="button" class="small" onClick={() => void props.onAll!()}>
          Redrive all …
        </button>
      )}
    </>
  );
}

interface LetterGridProps {
  letters: Dead[];
  runs: Run[];
  onOpen: (message: Message) => void;
  onRedrive: (dead: Dead) => Promise<void>;
}

function LetterGrid(props: LetterGridProps) {
  const redrive = (dead: Dead) => {
    if (isSentBack(dead.message, props.runs)) return <span class="faint">sent back</span>;
    const press = (event: Event) => {
      event.stopPropagation(); // the row would open
      void props.onRedrive(dead);
    };
    return (
      <button type="button" class="small" aria-label={`Redrive letter ${placeOf(dead.message)}`} onClick={press}>
        Redrive …
      </button>
    );
  };
  return (
    <Grid
      label="Dead letters"
      rows={props.letters}
      keyOf={({ message }) => placeOf(message)}
      onOpen={({ message }) => props.onOpen(message)}
      maxHeight="320px"
      columns={[
        { name: "letter", cell: ({ message }) => placeOf(message), width: 9 },
        { name: "original", cell: ({ letter }) => `${letter.partition}:${letter.offset}`, width: 10 },
        { name: "key", cell: ({ message }) => <code>{message.key}</code>, width: 14 },
        { name: "set aside", cell: ({ message }) => <Time at={message.ts} />, width: 16 },
        { name: "given", align: "end", cell: ({ letter }) => count(letter.deliveries), width: 8 },
        { name: "reason", cell: ({ letter }) => <span title={letter.reason}>{letter.reason}</span>, width: 30 },
        ...(may("redrive dead letters") ? [{ name: "send back", cell: redrive, width: 14 }] : []),
      ]}
    />
  );
}

/** The newest first. Rows that a pipeline rejected are on such topics, too: they came from no group. */
async function readLetters(topic: string, logs: OffsetRow[], signal: AbortSignal): Promise<Dead[]> {
  const reads = logs.map(({ partition_id, start_offset, end_offset }) => {
    const offset = Math.max(Number(start_offset), Number(end_offset) - SHOWN_LETTERS);
    const place = { topic, partition_id: Number(partition_id), start: { type: "Offset", offset } as const };
    return consume({ ...place, limit: SHOWN_LETTERS, timeout_seconds: 0 }, { signal });
  });
  const messages = (await Promise.all(reads)).flatMap((read) => read.messages);
  return messages
    .sort((a, b) => b.seq - a.seq || b.offset - a.offset)
    .flatMap((message) => {
      const letter = letterOf(message);
      return letter === null ? [] : [{ message, letter }];
    });
}

// --- sending back ---

async function redriveOne(topic: string, { message, letter }: Dead): Promise<void> {
  const body = (
    <p>
      Message {count(letter.offset)} of partition {letter.partition} of {letter.topic} is given to the group{" "}
      {letter.group} again, and to no other. It has been given {plural(letter.deliveries, "time")}; that is forgotten.
    </p>
  );
  if (!(await confirm({ title: "Send this letter back?", body, action: "Redrive 1 letter" }))) return;
  await redrive(`REDRIVE TOPIC ${quotedName(topic)} PARTITION ${message.partition_id} OFFSET ${message.offset}`);
}

/** `waiting` letters in all, of which `letters` are known one by one. */
async function redriveAll(topic: string, waiting: number, letters: Dead[]): Promise<void> {
  const body = (
    <>
      <p>Of {topic}, each letter that was not sent back yet is given again to its group:</p>
      <ul>
        {[...countsOf(letters)].map(([group, number]) => (
          <li key={group}>
            {plural(number, "letter")} to {group}
          </li>
        ))}
        {waiting > letters.length && <li>{plural(waiting - letters.length, "older letter")} not shown here</li>}
      </ul>
      <p>How often they have been given is forgotten.</p>
    </>
  );
  const action = `Redrive ${plural(waiting, "letter")}`;
  if (!(await confirm({ title: "Send all letters back?", body, action }))) return;
  await redrive(`REDRIVE TOPIC ${quotedName(topic)} ALL`);
}

function countsOf(letters: Dead[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const { letter } of letters) {
    const group = `${letter.group} on ${letter.topic}`;
    counts.set(group, (counts.get(group) ?? 0) + 1);
  }
  return counts;
}

async function redrive(statement: string): Promise<void> {
  try {
    const { results } = await sql(statement);
    const sent = results[0]!.row_count;
    toast(sent === 0 ? "Nothing to do: somebody was quicker" : `Sent back: ${plural(sent, "letter")}`);
  } catch (error) {
    toast(asApiError(error).message, "bad");
  }
}
