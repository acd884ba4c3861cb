/** The dead letters of a group: looking at them, and sending them back when the cause is mended. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { consume, sql, type Message } from "../api.ts";
import { confirm, Empty, Failure, Grid, Live, Loading, Panel, Time, toast } from "../components/index.ts";
import { asApiError, type ApiError } from "../errors.ts";
import { count, plural } from "../format.ts";
import { href } from "../router.ts";
import { may } from "../session.ts";
import { quotedName } from "../sql/quote.ts";
import { letterOf, MessageView, placeOf, type Letter } from "./message.tsx";
import { useOffsets, type OffsetRow } from "./topic_data.ts";

interface Dead {
  message: Message;
  letter: Letter;
}

const SHOWN_LETTERS = 200; // of each partition, the newest; the topic's own page has them all

/** Places of letters that this page has sent back: the server remembers too, and sends no letter twice. */
type SentBack = ReadonlySet<string>;

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
  const found = useSignal<Dead[] | null>(null);
  const error = useSignal<ApiError | null>(null);
  const sent = useSignal<SentBack>(new Set());
  const open = useSignal<Message | null>(null);
  const ends = props.logs.map(({ start_offset, end_offset }) => `${start_offset}-${end_offset}`).join();
  useEffect(() => {
    const ended = new AbortController();
    readLetters(props.deadLetter, props.logs, ended.signal).then(
      (letters) => (found.value = letters),
      (caught) => ended.signal.aborted || (error.value = asApiError(caught)),
    );
    return () => ended.abort();
  }, [ends]);
  const letters = found.value?.filter(({ letter }) => letter.topic === props.topic && letter.group === props.group);
  const mark = (done: boolean, sentBack: Dead[]) => {
    if (done) sent.value = new Set([...sent.value, ...sentBack.map(({ message }) => placeOf(message))]);
  };
  const show = (message: Message) => (open.value = message);
  const one = async (dead: Dead) => mark(await redriveOne(props.deadLetter, dead), [dead]);
  const all = async () => mark(await redriveAll(props.deadLetter, props.logs, found.value!), found.value!);
  return (
    <>
      <Panel title="Dead letters" actions={<Actions topic={props.deadLetter} onAll={letters?.length ? all : null} />}>
        {error.value !== null && <Failure error={error.value} />}
        {letters === undefined && error.value === null && <Loading what="dead letters" />}
        {letters?.length === 0 && (
          <Empty title="No dead letters of this group">A message that failed too often would be here.</Empty>
        )}
        {letters !== undefined && letters.length > 0 && (
          <LetterGrid letters={letters} sent={sent.value} onOpen={show} onRedrive={one} />
        )}
      </Panel>
      {open.value !== null && <MessageView message={open.value} onClose={() => (open.value = null)} />}
    </>
  );
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
  sent: SentBack;
  onOpen: (message: Message) => void;
  onRedrive: (dead: Dead) => Promise<void>;
}

function LetterGrid(props: LetterGridProps) {
  const redrive = (dead: Dead) => {
    if (props.sent.has(placeOf(dead.message))) return <span class="faint">sent back</span>;
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

async function redriveOne(topic: string, { message, letter }: Dead): Promise<boolean> {
  const body = (
    <p>
      Message {count(letter.offset)} of partition {letter.partition} of {letter.topic} is given to the group{" "}
      {letter.group} again, and to no other. It has been given {plural(letter.deliveries, "time")}; that is forgotten.
    </p>
  );
  if (!(await confirm({ title: "Send this letter back?", body, action: "Redrive 1 letter" }))) return false;
  return redrive(`REDRIVE TOPIC ${quotedName(topic)} PARTITION ${message.partition_id} OFFSET ${message.offset}`);
}

async function redriveAll(topic: string, logs: OffsetRow[], letters: Dead[]): Promise<boolean> {
  const kept = logs.reduce((sum, { messages }) => sum + Number(messages), 0);
  const body = (
    <>
      <p>
        {topic} holds {plural(kept, "letter")}. Each that was not sent back yet is given again to its group:
      </p>
      <ul>
        {[...countsOf(letters)].map(([group, letters]) => (
          <li key={group}>
            {plural(letters, "letter")} to {group}
          </li>
        ))}
        {kept > letters.length && <li>{plural(kept - letters.length, "older letter")} not shown here</li>}
      </ul>
      <p>Their deliveries are forgotten. Those sent back before stay where they are.</p>
    </>
  );
  const action = `Redrive up to ${plural(kept, "letter")}`;
  if (!(await confirm({ title: "Send all letters back?", body, action }))) return false;
  return redrive(`REDRIVE TOPIC ${quotedName(topic)} ALL`);
}

function countsOf(letters: Dead[]): Map<string, number> {
  const counts = new Map<string, number>();
  for (const { letter } of letters) {
    const group = `${letter.group} on ${letter.topic}`;
    counts.set(group, (counts.get(group) ?? 0) + 1);
  }
  return counts;
}

async function redrive(statement: string): Promise<boolean> {
  try {
    const { results } = await sql(statement);
    const sent = results[0]!.row_count;
    toast(sent === 0 ? "Nothing to do: it was sent back before" : `Sent back: ${plural(sent, "letter")}`);
    return true;
  } catch (error) {
    toast(asApiError(error).message, "bad");
    return false;
  }
}
