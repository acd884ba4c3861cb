/** What a page shows instead of data: that there is none yet, that it is coming, or why it does not come. */

import type { ComponentChildren } from "preact";
import type { ApiError } from "../errors.ts";
import type { LiveRows } from "../live.ts";
import { href } from "../router.ts";
import { Badge, Code } from "./small.tsx";

/** Nothing there yet: says what would be here, and what to type to get going. */
export function Empty(props: { title: string; sql?: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{props.title}</p>
      {props.children && <p>{props.children}</p>}
      {props.sql && (
        <>
          <Code label="SQL to begin with">{props.sql}</Code>
          <a class="button" href={href("sql", [], { text: props.sql })}>
            Open in SQL
          </a>
        </>
      )}
    </div>
  );
}

export function Loading(props: { what?: string }) {
  return (
    <p class="loading" role="status">
      Loading{props.what ? ` ${props.what}` : ""} …
    </p>
  );
}

/** What to do about it, where the code alone says it. */
const ADVICE: Record<string, string> = {
  permission_denied: "Your role does not allow it. Ask somebody with the role dba, or sign in as another user.",
  unreachable: "The console goes on by itself when the server is back.",
  cancelled: "What had begun on the server may still come to its end.",
  overloaded: "The server has more to do than it can. Try again in a moment.",
  timeout: "It took too long. A filter on the primary key, or a LIMIT, makes a query quicker.",
  too_large: "Ask for less: fewer columns, a filter, or a LIMIT.",
  schema_changed: "The table has other columns now. Run it again.",
};

export function Failure(props: { error: ApiError; title?: string; retry?: () => void; children?: ComponentChildren }) {
  const advice = ADVICE[props.error.code];
  return (
    <div class="failure" role="alert">
      <p>
        <Badge tone="bad">{props.error.code}</Badge> {props.title && <strong>{props.title}</strong>}
      </p>
      <p class="failure-message">{props.error.message}</p>
      {advice && <p class="faint">{advice}</p>}
      {props.children}
      {props.retry && (
        <button type="button" onClick={props.retry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** A live query in its three states. `empty` stands for no rows. */
export function Live<T>(props: {
  of: LiveRows<T>;
  empty: ComponentChildren;
  children: (rows: T[]) => ComponentChildren;
}) {
  const state = props.of.state.value;
  if (state.is === "ended") return <Failure error={state.error} />;
  if (state.is === "loading") return <Loading />;
  const rows = props.of.rows.value;
  return <>{rows.length === 0 ? props.empty : props.children(rows)}</>;
}
