/**
 * Who did what, the latest first.
 *
 * A log may be of any length, so what there was is asked for once, page by page; what comes after it is a live query.
 */

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { Param } from "tablecast";
import { rows } from "../api.ts";
import { Badge, Empty, Failure, Grid, Loading, Page, Panel, Time, type Tone } from "../components/index.ts";
import { asApiError, type ApiError } from "../errors.ts";
import { plural } from "../format.ts";
import { useLiveRows, type LiveRows } from "../live.ts";
import { route, setQuery } from "../router.ts";
import "./audit.css";

interface Entry {
  time: string;
  seq: string;
  number: string;
  user_id: string | null;
  role: string | null;
  action: string;
  target: string | null;
  outcome: "ok" | "denied" | "failed";
  detail: string | null;
  request_id: string | null;
}

interface Filter {
  user: string;
  action: string;
  outcome: string;
}

const PAGE_ENTRIES = 100;
const OUTCOMES = ["ok", "denied", "failed"];
const TONES: Record<Entry["outcome"], Tone> = { ok: "good", denied: "bad", failed: "warn" };

/** Those that there were when the page was asked for, and any older ones asked for since. */
interface Kept {
  filter: Filter;
  entries: Entry[];
  hasMore: boolean;
}

export default function Audit() {
  const filter = filterOf(route.value.query);
  const kept = useSignal<Kept | null>(null);
  const error = useSignal<ApiError | null>(null);
  const turn = useSignal(0);
  useEffect(() => {
    kept.value = null;
    return add(filter, null);
  }, [JSON.stringify(filter), turn.value]);
  const add = (wanted: Filter, after: Entry | null): (() => void) => {
    const ended = new AbortController();
    error.value = null;
    const show = (page: Entry[]) => {
      const before = after === null ? [] : (kept.value?.entries ?? []);
      if (before.at(-1) !== (after ?? undefined)) return; // what it goes on from is not shown any more, or goes on already
      kept.value = { filter: wanted, entries: [...before, ...page], hasMore: page.length === PAGE_ENTRIES };
    };
    const fail = (caught: unknown) => ended.signal.aborted || (error.value = asApiError(caught));
    read(wanted, after, ended.signal).then(show, fail);
    return () => ended.abort();
  };
  const again = () => void (turn.value += 1);
  const older = () => void add(filter, kept.value!.entries.at(-1)!);
  return (
    <Page title="Audit" about="Definitions, users, and what was refused." actions={<Fields filter={filter} />}>
      <Panel title="Entries">
        {error.value !== null && <Failure error={error.value} retry={again} />}
        {kept.value === null && error.value === null && <Loading what="entries" />}
        {kept.value !== null && <Entries kept={kept.value} onOlder={older} onAgain={again} />}
      </Panel>
    </Page>
  );
}

function filterOf(query: URLSearchParams): Filter {
  return { user: query.get("user") ?? "", action: query.get("action") ?? "", outcome: query.get("outcome") ?? "" };
}

type Condition = [text: string, params: Param[]];

const ENTRIES = "SELECT time, seq, number, user_id, role, action, target, outcome, detail, request_id FROM system.audit_log";

function conditionsOf(filter: Filter): Condition[] {
  const conditions: Condition[] = [];
  if (filter.user !== "") conditions.push(["user_id = ?", [filter.user]]);
  if (filter.action !== "") conditions.push(["lower(action) LIKE ?", [`%${filter.action.toLowerCase()}%`]]);
  if (filter.outcome !== "") conditions.push(["outcome = ?", [filter.outcome]]);
  return conditions;
}

function selected(conditions: Condition[]): Condition {
  const where = conditions.length === 0 ? "" : ` WHERE ${conditions.map(([text]) => text).join(" AND ")}`;
  return [ENTRIES + where, conditions.flatMap(([, params]) => params)];
}

function read(filter: Filter, after: Entry | null, signal: AbortSignal): Promise<Entry[]> {
  const conditions = conditionsOf(filter);
  if (after !== null) conditions.push(["(seq < ? OR (seq = ? AND number < ?))", [after.seq, after.seq, after.number]]);
  const [text, params] = selected(conditions);
  return rows<Entry>(`${text} ORDER BY seq DESC, number DESC LIMIT ${PAGE_ENTRIES}`, params, { signal });
}

/** What came since, as it comes. */
function useNewer({ filter, entries: [newest] }: Kept): LiveRows<Entry> {
  const [text, params] = selected([...conditionsOf(filter), ["seq > ?", [Number(newest?.seq ?? 0)]]]);
  return useLiveRows<Entry>(text, params);
}

function latestFirst(a: Entry, b: Entry): number {
  return Number(b.seq) - Number(a.seq) || Number(b.number) - Number(a.number);
}

/** Applied when a field is left or Enter is pressed, not with every letter. */
function Fields(props: { filter: Filter }) {
  const draft = useSignal(props.filter);
  const applied = useRef(props.filter);
  useLayoutEffect(() => {
    if (!isSame(props.filter, applied.current)) draft.value = props.filter; // by the address: what is typed here stays
  }, [JSON.stringify(props.filter)]);
  const type = (part: Partial<Filter>) => (draft.value = { ...draft.value, ...part });
  const apply = () => {
    applied.current = draft.value;
    setQuery(Object.fromEntries(Object.entries(draft.value).filter(([, value]) => value !== "")));
  };
  const submit = (event: Event) => {
    event.preventDefault();
    apply();
  };
  const { user, action, outcome } = draft.value;
  const choose = (chosen: string) => {
    type({ outcome: chosen });
    apply();
  };
  return (
    <form class="audit-filter" role="search" aria-label="Entries" onSubmit={submit} onFocusOut={apply}>
      <input
        data-filter aria-label="User" placeholder="User" value={user}
        onInput={(event) => type({ user: event.currentTarget.value })}
      />
      <input
        aria-label="Action" placeholder="Action" value={action}
        onInput={(event) => type({ action: event.currentTarget.value })}
      />
      <select aria-label="Outcome" value={outcome} onChange={(event) => choose(event.currentTarget.value)}>
        <option value="">any outcome</option>
        {OUTCOMES.map((name) => (
          <option key={name}>{name}</option>
        ))}
      </select>
      <button type="submit">Filter</button>
    </form>
  ); // prettier-ignore
}

function isSame(a: Filter, b: Filter): boolean {
  return a.user === b.user && a.action === b.action && a.outcome === b.outcome;
}

function Entries(props: { kept: Kept; onOlder: () => void; onAgain: () => void }) {
  const { hasMore } = props.kept;
  const newer = useNewer(props.kept);
  const state = newer.state.value;
  const entries = [...newer.rows.value.toSorted(latestFirst), ...props.kept.entries];
  const ended = state.is === "ended" && <Failure error={state.error} retry={props.onAgain} />;
  if (entries.length === 0) {
    const none = <Empty title="No entries like that">A filter matches a user exactly, and any part of an action.</Empty>;
    return ended || none;
  }
  return (
    <>
      {ended}
      <Grid
        label="Entries"
        rows={entries}
        keyOf={(row) => `${row.seq}:${row.number}`}
        keepsPlace
        maxHeight="min(70vh, 720px)"
        columns={[
          { name: "time", cell: (row) => <Time at={row.time} />, width: 16 },
          { name: "user", cell: (row) => row.user_id ?? "–", width: 14 },
          { name: "role", cell: (row) => row.role ?? "–", width: 10 },
          { name: "action", cell: (row) => row.action, width: 24 },
          { name: "target", cell: (row) => row.target ?? "", width: 20 },
          { name: "outcome", cell: (row) => <Badge tone={TONES[row.outcome]}>{row.outcome}</Badge>, width: 11 },
          { name: "detail", cell: (row) => <span title={row.detail ?? ""}>{row.detail ?? ""}</span>, width: 30 },
          { name: "request", cell: (row) => <Id of={row.request_id} />, width: 14 },
        ]}
      />
      <div class="audit-more">
        <span class="faint">{plural(entries.length, "entry", "entries")}</span>
        <button type="button" class="small" disabled={!hasMore} onClick={props.onOlder}>
          Older
        </button>
      </div>
    </>
  );
}

function Id(props: { of: string | null }) {
  return <code title={props.of ?? ""}>{props.of ?? ""}</code>;
}
