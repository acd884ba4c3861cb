/** What was run before, to be taken again. */

import { useSignal } from "@preact/signals";
import { Badge, Panel, Time } from "../components/index.ts";
import { forgetRuns, runs } from "../sql/history.ts";

const MAX_SHOWN = 50;

export function Runs(props: { onTake: (text: string) => void }) {
  const wanted = useSignal("");
  const found = runs().filter(({ text }) => text.toLowerCase().includes(wanted.value.toLowerCase()));
  const filter = (
    <>
      <input
        data-filter
        type="search"
        aria-label="Filter the history"
        placeholder="Filter"
        value={wanted.value}
        onInput={(event) => (wanted.value = event.currentTarget.value)}
      />
      <button type="button" class="quiet small" onClick={forgetRuns}>
        Forget all
      </button>
    </>
  );
  return (
    <Panel title="History" actions={filter}>
      {found.length === 0 ? (
        <p class="panel-body faint">
          Nothing here. What you run is kept in this browser, but for texts with a password.
        </p>
      ) : (
        <ul class="runs">
          {found.slice(0, MAX_SHOWN).map((run) => (
            <li key={run.text}>
              <button type="button" class="quiet" onClick={() => props.onTake(run.text)}>
                <code>{run.text}</code>
                {run.failed && <Badge tone="bad">failed</Badge>}
                <Time at={run.at} />
              </button>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}
