/** The frame of a page: its title, what can be done there, and its panels. */

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";

export function Page(props: {
  title: string;
  about?: ComponentChildren;
  actions?: ComponentChildren;
  children: ComponentChildren;
}) {
  useEffect(() => void (document.title = `${props.title} · tablecast`), [props.title]);
  return (
    <div class="page">
      <header class="page-head">
        <div>
          <h1>{props.title}</h1>
          {props.about && <p class="about">{props.about}</p>}
        </div>
        {props.actions && <div class="actions">{props.actions}</div>}
      </header>
      {props.children}
    </div>
  );
}

let numbers = 0;

/** A part of a page, with a heading. */
export function Panel(props: {
  title: string;
  actions?: ComponentChildren;
  class?: string;
  children: ComponentChildren;
}) {
  const id = `panel-${props.title.toLowerCase().replace(/\W+/g, "-")}`;
  return (
    <section class={`panel ${props.class ?? ""}`} aria-labelledby={id}>
      <header class="panel-head">
        <h2 id={id}>{props.title}</h2>
        {props.actions && <div class="actions">{props.actions}</div>}
      </header>
      {props.children}
    </section>
  );
}

/** An id for labels, unlike any other of the page. */
export function freshId(prefix: string): string {
  return `${prefix}-${++numbers}`;
}
