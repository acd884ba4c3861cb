/** SQL: an editor, and below it what came of it: results, an error at its place, or one SELECT that stays live. */

import { batch, effect, signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { sql, type Answer } from "../api.ts";
import { Failure, Loading, Page } from "../components/index.ts";
import { Editor, type EditorHandle } from "../components/editor.tsx";
import { ApiError, asApiError } from "../errors.ts";
import { plural } from "../format.ts";
import { follow, type Followed } from "../live_follow.ts";
import { route, setQuery } from "../router.ts";
import { me } from "../session.ts";
import { remember } from "../sql/history.ts";
import { defines, fetchNames, forgetNames, names } from "../sql/names.ts";
import { placeOf, type Place } from "../sql/place.ts";
import { isSelect, statementAt, statementsOf } from "../sql/statements.ts";
import { LiveResult } from "./sql_live.tsx";
import { Results } from "./sql_results.tsx";
import { Runs } from "./sql_runs.tsx";
import { Suggestions } from "./sql_suggestions.tsx";
import "./sql.css";

type Outcome =
  | { is: "nothing" | "running" }
  | { is: "answered"; answer: Answer }
  | { is: "failed"; error: ApiError; place: Place | null; done: number }
  | { is: "live"; text: string; followed: Followed };

/** These outlive the page: whoever comes back finds the text and its results. Not in storage: it may hold secrets. */
const draft = signal("");
const outcome = signal<Outcome>({ is: "nothing" });
const isHistoryOpen = signal(false);

let running: AbortController | null = null;

/** Whoever signs in next is somebody else. */
effect(() => {
  if (me.value !== null) return;
  running?.abort();
  running = null;
  batch(() => {
    draft.value = "";
    outcome.value = { is: "nothing" };
    isHistoryOpen.value = false;
  });
  forgetNames();
});

export default function Sql() {
  const editor = useRef<EditorHandle | null>(null);
  const given = route.value.query.get("text");
  useLayoutEffect(fetchNames, []);
  useEffect(() => stopLive, []); // a live query without eyes on it would only cost
  // Before the page is drawn: what Run would run is there when it can be pressed.
  useLayoutEffect(() => {
    if (given === null) return;
    editor.current?.replace(given);
    setQuery({});
  }, [given]);
  const runAgain = (text: string) => {
    editor.current!.replace(text);
    isHistoryOpen.value = false;
  };
  return (
    <Page title="SQL" actions={<Actions editor={editor} />}>
      <section class="panel" aria-label="Editor">
        <Editor
          label="SQL"
          initial={draft.value}
          names={names}
          handle={editor}
          onRun={() => void run(editor.current!)}
          onChange={(text) => (draft.value = text)}
        />
      </section>
      {isHistoryOpen.value && <Runs onTake={runAgain} />}
      <Shown editor={editor} onTake={runAgain} />
    </Page>
  );
}

function Actions(props: { editor: { current: EditorHandle | null } }) {
  const isRunning = outcome.value.is === "running";
  const isLive = outcome.value.is === "live";
  const switchLive = (event: Event) => {
    if (isLive) stopLive();
    else startLive(props.editor.current!);
    (event.currentTarget as HTMLInputElement).checked = outcome.value.is === "live"; // what is, not what was wished
  };
  return (
    <>
      <button
        type="button"
        class="quiet"
        aria-expanded={isHistoryOpen.value}
        onClick={() => (isHistoryOpen.value = !isHistoryOpen.value)}
      >
        History
      </button>
      <label class="switch" title="Keep one SELECT current: the selection, or where the cursor is">
        <input type="checkbox" role="switch" checked={isLive} disabled={isRunning} onChange={switchLive} />
        Live
      </label>
      {isRunning ? (
        <button type="button" onClick={() => running?.abort()}>
          Cancel
        </button>
      ) : (
        <button type="button" class="primary" title="Ctrl-Enter" onClick={() => void run(props.editor.current!)}>
          Run
        </button>
      )}
    </>
  );
}

function Shown(props: { editor: { current: EditorHandle | null }; onTake: (text: string) => void }) {
  const now = outcome.value;
  switch (now.is) {
    case "nothing":
      return <Suggestions onTake={props.onTake} />;
    case "running":
      return <Loading what="the answer" />;
    case "answered":
      return <Results answer={now.answer} />;
    case "live":
      return <LiveResult text={now.text} followed={now.followed} />;
    case "failed":
      return (
        <section class="panel" aria-label="Error">
          <Failure error={now.error}>
            {now.done > 0 && <p>What stands before it has happened: {plural(now.done, "statement")}.</p>}
            {now.place && (
              <button type="button" onClick={() => props.editor.current!.goTo(now.place!)}>
                Show in the text
              </button>
            )}
          </Failure>
        </section>
      );
  }
}

// --- running ---

/** What is selected, or all of it. */
function chosen(editor: EditorHandle): { text: string; at: number } {
  const { from, to } = editor.selection();
  const text = editor.text();
  return from < to ? { text: text.slice(from, to), at: from } : { text, at: 0 };
}

async function run(editor: EditorHandle): Promise<void> {
  const { text, at } = chosen(editor);
  if (statementsOf(text).length === 0) return;
  stopLive();
  running?.abort();
  const own = (running = new AbortController());
  editor.mark(null);
  outcome.value = { is: "running" };
  let next: Outcome;
  try {
    next = { is: "answered", answer: await sql(text, [], { signal: own.signal }) };
  } catch (caught) {
    next = failedAt(asApiError(caught), text, at);
  }
  if (running !== own) return; // another run has begun
  if (next.is === "failed") editor.mark(next.place);
  batch(() => {
    outcome.value = next;
    remember({ text, at: Date.now(), failed: next.is === "failed" });
  });
  if (defines(text)) fetchNames();
}

function failedAt(error: ApiError, text: string, at: number): Outcome {
  const place = placeOf(error, text);
  const done = Math.max(0, Number(error.details.statement ?? 1) - 1);
  return { is: "failed", error, place: place && { from: place.from + at, to: place.to + at }, done };
}

/** The selection, or the statement at the cursor, becomes live. */
function startLive(editor: EditorHandle): void {
  const { from, to } = editor.selection();
  const text = from < to ? editor.text().slice(from, to) : (statementAt(editor.text(), from)?.text ?? "");
  stopLive();
  if (!isSelect(text)) {
    const error = new ApiError(
      "unsupported_sql",
      "Live keeps one SELECT current: put the cursor into one, or select it.",
    );
    outcome.value = { is: "failed", error, place: null, done: 0 };
    return;
  }
  outcome.value = { is: "live", text, followed: follow(text) };
  remember({ text, at: Date.now(), failed: false });
}

function stopLive(): void {
  if (outcome.value.is !== "live") return;
  outcome.value.followed.close();
  outcome.value = { is: "nothing" };
}
