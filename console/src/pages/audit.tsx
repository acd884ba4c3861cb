/** Who did what, the latest first. It is as of when it was asked: a log of any length is not followed live. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Param } from "tablecast";
import { rows } from "../api.ts";
import { Badge, Empty, Failure, Grid, Loading, Page, Panel, Time, type Tone } from "../components/index.ts";
import { asApiError, type ApiError } from "../errors.ts";
import { plural } from "../format.ts";
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

interface Shown {
  entries: Entry[];
  hasMore: boolean;
}

export default function Audit() {
  const filter = filterOf(route.value.query);
  const shown = useSignal<Shown | null>(null);
  const error = useSignal<ApiError | null>(null);
  const turn = useSignal(0);
  useEffect(() => {
    shown.value = null;
    return add(filter, null);
  }, [JSON.stringify(filter), turn.value]);
  const add = (wanted: Filter, after: Entry | null): (() => void) => {
    const ended = new AbortController();
    error.value = null;
    const show = (page: Entry[]) => {
      const before = after === null ? [] : shown.value!.entries;
      shown.value = { entries: [...before, ...page], hasMore: page.length === PAGE_ENTRIES };
    };
    const fail = (caught: unknown) => ended.signal.aborted || (error.value = asApiError(caught));
    read(wanted, after, ended.signal).then(show, fail);
    return () => ended.abort();
  };
  const again = () => void (turn.value += 1);
  const refresh = (
    <button type="button" class="small" onClick={again}>
      Refresh
    </button>
  );
  const older = () => void add(filter, shown.value!.entries.at(-1)!);
  return (
    <Page title="Audit" about="Definitions, users, and what was refused." actions={<Fields filter={filter} />}>
      <Panel title="Entries" actions={refresh}>
        {error.value !== null && <Failure error={error.value} retry={again} />}
        {shown.value === null && error.value === null && <Loading what="entries" />}
        {shown.value !== null && <Entries shown={shown.value} onOlder={older} />}
      </Panel>
    </Page>
  );
}

function filterOf(query: URLSearchParams): Filter {
  return { user: query.get("user") ?? "", action: query.get("action") ?? "", outcome: query.get("outcome") ?? "" };
}

function read(filter: Filter, after: Entry | null, signal: AbortSignal): Promise<Entry[]> {
  const conditions: [string, Param[]][] = [];
  if (filter.user !== "") conditions.push(["user_id = ?", [filter.user]]);
  if (filter.action !== "") conditions.push(["lower(action) LIKE ?", [`%${filter.action.toLowerCase()}%`]]);
  if (filter.outcome !== "") conditions.push(["outcome = ?", [filter.outcome]]);
  if (after !== null) conditions.push(["(seq < ? OR (seq = ? AND number < ?))", [after.seq, after.seq, after.number]]);
  const where = conditions.length === 0 ? "" : ` WHERE ${conditions.map(([text]) => text).join(" AND ")}`;
  return rows<Entry>(
    `SELECT time, seq, number, user_id, role, action, target, outcome, detail, request_id FROM system.audit_log${where}
      ORDER BY seq DESC, number DESC LIMIT ${PAGE_ENTRIES}`,
    conditions.flatMap(([, params]) => params),
    { signal },
  );
}

/** Applied when a field is left or Enter is pressed, not with every letter. */
function Fields(props: { filter: Filter }) {
  const draft = useSignal(props.filter);
  const applied = useRef(props.filter);
  useEffect(() => {
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

function Entries(props: { shown: Shown; onOlder: () => void }) {
  const { entries, hasMore } = props.shown;
  if (entries.length === 0) {
    return <Empty title="No entries like that">A filter matches a user exactly, and any part of an action.</Empty>;
  }
  return (
    <>
      <Grid
        label="Entries"
        rows={entries}
        keyOf={(row) => `${row.seq}:${row.number}`}
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
