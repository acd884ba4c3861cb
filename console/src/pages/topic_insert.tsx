/** Puts a message on a topic the only way there is, by a row of a source table, and shows what came of it. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { rows, type Message } from "../api.ts";
import { Code, Empty, Failure, Live, Loading, Panel } from "../components/index.ts";
import { asApiError, type ApiError } from "../errors.ts";
import { plural } from "../format.ts";
import type { LiveRows } from "../live.ts";
import { may } from "../session.ts";
import { MessageView, placeOf } from "./message.tsx";
import type { SourceRow } from "./topic_data.ts";
import { columnsOf, insertInto, insertText, type Column } from "./topic_insertion.ts";

export function InsertForm(props: { topic: string; sources: LiveRows<SourceRow> }) {
  const none = <Empty title="No table feeds this topic">A topic gets messages from its sources only.</Empty>;
  return (
    <Panel title="Insert a row">
      <Live of={props.sources} empty={none}>
        {(sources) => <OfSources topic={props.topic} sources={sources} />}
      </Live>
    </Panel>
  );
}

interface TableRow {
  namespace: string;
  name: string;
  kind: string;
  access_level: string;
}

/** The source tables that this role may write. */
function OfSources(props: { topic: string; sources: SourceRow[] }) {
  const allowed = useSignal<string[] | null>(null);
  const error = useSignal<ApiError | null>(null);
  const chosen = useSignal<string | null>(null);
  const inserting = props.sources.filter(({ ops }) => ops.includes("insert"));
  const feeding = [...new Set(inserting.map(({ table_name }) => table_name))];
  useEffect(() => {
    rows<TableRow>("SELECT namespace, name, kind, access_level FROM system.tables").then(
      (tables) => (allowed.value = tables.filter(mayWrite).map(({ namespace, name }) => `${namespace}.${name}`)),
      (caught) => (error.value = asApiError(caught)),
    );
  }, []);
  if (error.value !== null) return <Failure error={error.value} />;
  if (allowed.value === null) return <Loading />;
  const tables = feeding.filter((table) => allowed.value!.includes(table));
  const table = chosen.value ?? tables[0];
  if (table === undefined) {
    return <Empty title="Nothing to insert into">No source takes inserts that your role may write.</Empty>;
  }
  return (
    <div class="panel-body insertion">
      {tables.length > 1 && (
        <label>
          Table{" "}
          <select value={table} onChange={(event) => (chosen.value = event.currentTarget.value)}>
            {tables.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
      )}
      <OfTable key={table} topic={props.topic} table={table} filters={filtersOf(inserting, table)} />
    </div>
  );
}

function filtersOf(sources: SourceRow[], table: string): string[] {
  return sources.flatMap(({ table_name, filter }) => (table_name === table && filter !== null ? [filter] : []));
}

function mayWrite({ kind, access_level }: TableRow): boolean {
  return kind !== "SHARED" || may(access_level === "RESTRICTED" ? "define tables and topics" : "write shared tables");
}

type Outcome =
  | { is: "nothing" | "writing" }
  | { is: "failed"; error: ApiError }
  | { is: "written"; messages: Message[] };

function OfTable(props: { topic: string; table: string; filters: string[] }) {
  const columns = useSignal<Column[] | null>(null);
  const values = useSignal<Record<string, string>>({});
  const outcome = useSignal<Outcome>({ is: "nothing" });
  useEffect(() => {
    void columnsOf(props.table).then((found) => (columns.value = found), fail);
  }, []);
  const fail = (error: unknown) => void (outcome.value = { is: "failed", error: asApiError(error) });
  const submit = (event: Event) => {
    event.preventDefault();
    outcome.value = { is: "writing" };
    insertInto(props.topic, props.table, columns.value!, values.value).then(
      (messages) => (outcome.value = { is: "written", messages }),
      fail,
    );
  };
  const type = (column: string, text: string) => (values.value = { ...values.value, [column]: text });
  if (columns.value === null) {
    return outcome.value.is === "failed" ? <Failure error={outcome.value.error} /> : <Loading />;
  }
  return (
    <>
      <form onSubmit={submit}>
        <div class="fields">
          {columns.value.map((column) => (
            <Field key={column.name} column={column} onInput={(text) => type(column.name, text)} />
          ))}
        </div>
        <Code label="The statement">{insertText(props.table, columns.value, values.value)}</Code>
        <button type="submit" class="primary" disabled={outcome.value.is === "writing"}>
          Insert
        </button>
      </form>
      <Came outcome={outcome.value} filters={props.filters} onClose={() => (outcome.value = { is: "nothing" })} />
    </>
  );
}

/** What is left empty is not part of the statement: the column's default, or NULL. */
function Field(props: { column: Column; onInput: (text: string) => void }) {
  const { column } = props;
  const isNeeded = column.not_null && column.default === null;
  const hint = column.default !== null ? `default ${column.default}` : isNeeded ? "" : "NULL";
  const onInput = (event: { currentTarget: { value: string } }) => props.onInput(event.currentTarget.value);
  return (
    <label>
      <span>
        {column.name}
        {isNeeded && <b aria-hidden="true"> *</b>} <small class="faint">{column.type}</small>
      </span>
      {column.type === "BOOLEAN" ? (
        <select required={isNeeded} onChange={onInput}>
          <option value="">{hint}</option>
          <option>true</option>
          <option>false</option>
        </select>
      ) : column.type === "JSON" ? (
        <textarea rows={2} placeholder={hint} required={isNeeded} onInput={onInput} />
      ) : (
        <input placeholder={hint} required={isNeeded} autocomplete="off" onInput={onInput} />
      )}
    </label>
  );
}

function Came(props: { outcome: Outcome; filters: string[]; onClose: () => void }) {
  const { outcome } = props;
  if (outcome.is === "failed") return <Failure error={outcome.error} title="The row was not written" />;
  if (outcome.is !== "written") return null;
  if (outcome.messages.length === 0) {
    return (
      <Empty title="The row is written, and no message came of it">
        {props.filters.length === 0
          ? "A message that says the same was there a moment ago."
          : `The filter did not match: ${props.filters.join("; ")}.`}
      </Empty>
    );
  }
  return (
    <div class="came" role="status">
      <p>The row is written, and became {plural(outcome.messages.length, "message")}:</p>
      {outcome.messages.map((message) => (
        <MessageView key={placeOf(message)} message={message} onClose={props.onClose} />
      ))}
    </div>
  );
}
