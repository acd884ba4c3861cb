/** Messages: as rows of a grid, and one in full with its payload decoded. */

import { payloadText, type Message } from "../api.ts";
import { Badge, Code, Grid, Panel, Time, type GridColumn, type Tone } from "../components/index.ts";
import { count, plural } from "../format.ts";
import { membersOf, parseExactly, pretty, type Json } from "../json.ts";
import { href } from "../router.ts";
import { Clock } from "./clock.tsx";
import "./message.css";

const OP_TONE: Record<Message["op"], Tone> = { insert: "good", update: "warn", delete: "bad" };
const SHOWN_CHARS = 240; // of a payload, in a row

export function placeOf(message: Message): string {
  return `${message.partition_id}:${message.offset}`;
}

export function Op(props: { op: Message["op"] }) {
  return <Badge tone={OP_TONE[props.op]}>{props.op}</Badge>;
}

interface MessageGridProps {
  label: string;
  messages: readonly Message[];
  /** Which of them is shown in full. */
  open: string | null;
  onOpen: (message: Message) => void;
  keepsPlace?: boolean;
  columns?: GridColumn<Message>[];
}

export function MessageGrid(props: MessageGridProps) {
  return (
    <Grid
      label={props.label}
      rows={props.messages}
      keyOf={placeOf}
      onOpen={props.onOpen}
      rowClass={(message) => (placeOf(message) === props.open ? "is-open" : undefined)}
      keepsPlace={props.keepsPlace}
      maxHeight="min(60vh, 520px)"
      columns={[
        { name: "partition", align: "end", cell: (message) => message.partition_id, width: 11 },
        { name: "offset", align: "end", cell: (message) => count(message.offset), width: 11 },
        { name: "time", cell: (message) => <Clock at={message.ts} />, width: 16 },
        { name: "op", cell: (message) => <Op op={message.op} />, width: 12 },
        { name: "key", cell: (message) => <code>{message.key}</code>, width: 16 },
        { name: "payload", cell: (message) => <code>{payloadText(message).slice(0, SHOWN_CHARS)}</code>, width: 46 },
        ...(props.columns ?? []),
      ]}
    />
  );
}

/** All of one message. */
export function MessageView(props: { message: Message; onClose: () => void }) {
  const { message } = props;
  const close = (
    <button type="button" class="small" onClick={props.onClose}>
      Close
    </button>
  );
  return (
    <Panel title={`Message ${count(message.offset)} of partition ${message.partition_id}`} actions={close}>
      <div class="message">
        <Facts message={message} />
        <Payload message={message} />
      </div>
    </Panel>
  );
}

function Facts(props: { message: Message }) {
  const { message } = props;
  return (
    <dl class="facts">
      <dt>Operation</dt>
      <dd>
        <Op op={message.op} /> of {message.source_table}
      </dd>
      <dt>Key</dt>
      <dd>
        <code>{message.key}</code>
      </dd>
      <dt>Committed</dt>
      <dd>
        <Time at={message.ts} />
        <span class="faint"> in commit {count(message.seq)}</span>
      </dd>
      <dt>Payload</dt>
      <dd>{message.payload_mode}</dd>
      {message.user_id !== null && (
        <>
          <dt>Of user</dt>
          <dd>{message.user_id}</dd>
        </>
      )}
      <dt>Id</dt>
      <dd>
        <code>{message.message_id}</code>
      </dd>
    </dl>
  );
}

function Payload(props: { message: Message }) {
  const { message } = props;
  const payload = parseExactly(payloadText(message));
  const letter = letterOf(message);
  return (
    <div class="payload">
      {letter !== null && <LetterFacts letter={letter} />}
      {message.payload_mode === "diff" && message.op === "update" && <Diff payload={payload} />}
      <Code label="Payload">{pretty(payload)}</Code>
    </div>
  );
}

/** Columns that changed, as they were and as they are. */
function Diff(props: { payload: Json }) {
  const changed = Object.entries(membersOf(props.payload)).filter(([, value]) => "old" in membersOf(value));
  if (changed.length === 0) return <p class="faint">An update that changed no value.</p>;
  return (
    <div class="diff">
      <table aria-label="What changed">
        <thead>
          <tr>
            <th scope="col">column</th>
            <th scope="col">old</th>
            <th scope="col">new</th>
          </tr>
        </thead>
        <tbody>
          {changed.map(([name, value]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td class="old">
                <Side value={membersOf(value).old} />
              </td>
              <td class="new">
                <Side value={membersOf(value).new} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Side(props: { value: Json | undefined }) {
  return props.value === null ? <span class="faint">NULL</span> : <pre>{pretty(props.value)}</pre>;
}

// --- dead letters ---

/** What a dead letter says about where it came from. */
export interface Letter {
  topic: string;
  group: string;
  partition: number;
  offset: number;
  deliveries: number;
  reason: string;
}

/** Null for any other message. */
export function letterOf(message: Message): Letter | null {
  const found = membersOf(parseExactly(payloadText(message)))._dead_letter;
  return found === undefined ? null : (membersOf(found) as unknown as Letter);
}

function LetterFacts(props: { letter: Letter }) {
  const { letter } = props;
  const place = { from: "offset", partition: `${letter.partition}`, offset: `${letter.offset}` };
  return (
    <dl class="facts">
      <dt>Dead letter of</dt>
      <dd>
        <a href={href("groups", [letter.topic, letter.group])}>{letter.group}</a> on {letter.topic}
      </dd>
      <dt>Original</dt>
      <dd>
        <a href={href("topics", [letter.topic], place)}>
          message {count(letter.offset)} of partition {letter.partition}
        </a>
      </dd>
      <dt>Given</dt>
      <dd>{plural(letter.deliveries, "time")}</dd>
      <dt>Reason</dt>
      <dd>{letter.reason}</dd>
    </dl>
  );
}
