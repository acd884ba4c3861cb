/** Keys that work anywhere: `g` and a letter goes to a page, `/` to the filter, `?` shows them all. */

import { signal } from "@preact/signals";
import { me } from "./session.ts";
import { offered } from "./pages/index.ts";
import { go } from "./router.ts";

export const isHelpOpen = signal(false);

const SECOND_KEY_MS = 1_500; // time for the letter after `g`
let wentAt = -Infinity;

export function listenForKeys(): void {
  addEventListener("keydown", pressed);
}

function pressed(event: KeyboardEvent): void {
  if (me.value === null || event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
  if (document.querySelector("dialog[open]") !== null) return;
  if (event.timeStamp - wentAt < SECOND_KEY_MS && goTo(event.key)) event.preventDefault();
  else if (event.key === "/" && focusFilter()) event.preventDefault();
  else if (event.key === "?") isHelpOpen.value = true;
  wentAt = event.key === "g" ? event.timeStamp : -Infinity;
}

function goTo(key: string): boolean {
  const page = offered().find((candidate) => candidate.key === key);
  if (page !== undefined) go(page.id);
  return page !== undefined;
}

/** A page marks its filter with `data-filter`. */
function focusFilter(): boolean {
  const filter = document.querySelector<HTMLElement>("[data-filter]");
  filter?.focus();
  return filter !== null;
}

function isTyping(event: KeyboardEvent): boolean {
  const target = event.composedPath()[0];
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName);
}
