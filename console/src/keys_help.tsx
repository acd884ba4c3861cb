/** The list of keys. */

import { Dialog } from "./components/confirm.tsx";
import { isHelpOpen } from "./keys.ts";
import { offered } from "./pages/index.ts";

export function KeysHelp() {
  const close = () => (isHelpOpen.value = false);
  return (
    <Dialog title="Keys" onClose={close}>
      <dl class="keys">
        {offered().map(({ key, title }) => (
          <Keys key={key} keys={["g", key]} does={title} />
        ))}
        <Keys keys={["/"]} does="to the filter" />
        <Keys keys={["Ctrl", "Enter"]} does="run the SQL, or what is selected of it" />
        <Keys keys={["↑", "↓", "Enter"]} does="move in a table, open a row" />
        <Keys keys={["Tab"]} does="out of the editor" />
        <Keys keys={["?"]} does="this list" />
      </dl>
      <div class="dialog-actions">
        <button type="button" class="primary" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

function Keys(props: { keys: string[]; does: string }) {
  return (
    <div>
      <dt>
        {props.keys.map((key) => (
          <kbd key={key}>{key}</kbd>
        ))}
      </dt>
      <dd>{props.does}</dd>
    </div>
  );
}
