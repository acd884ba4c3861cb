/** Views of one thing, each with an address of its own. */

import { href, route } from "../router.ts";
import "./tabs.css";

export function Tabs(props: { label: string; tabs: Record<string, string>; current: string }) {
  const { page, path } = route.value;
  return (
    <nav class="tabs" aria-label={props.label}>
      {Object.entries(props.tabs).map(([id, title]) => (
        <a key={id} href={href(page, path, { view: id })} aria-current={id === props.current ? "page" : undefined}>
          {title}
        </a>
      ))}
    </nav>
  );
}
