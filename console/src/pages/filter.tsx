/** The field that narrows a list by name; the key `/` goes there. */

import type { Signal } from "@preact/signals";

export function Filter(props: { text: Signal<string> }) {
  const { text } = props;
  return (
    <input
      type="search" data-filter aria-label="Filter by name" placeholder="Filter" value={text.value}
      onInput={(event) => (text.value = event.currentTarget.value)}
    />
  ); // prettier-ignore
}

/** Whether a name has the text in it, in whatever case. */
export function matches(name: string, text: string): boolean {
  return name.toLowerCase().includes(text.trim().toLowerCase());
}
