/** What was run in this browser, the latest first; by user, and never a text with a password in it. */

import { signal } from "@preact/signals";
import { me } from "../session.ts";
import { holdsPassword } from "./statements.ts";

export interface Run {
  text: string;
  at: number;
  failed: boolean;
}

const MAX_RUNS = 200;
const MAX_CHARS = 20_000; // a longer text is not kept: it would push out many others
const changes = signal(0);

export function runs(): Run[] {
  void changes.value;
  try {
    return JSON.parse(localStorage.getItem(key()) ?? "[]") as Run[];
  } catch {
    return []; // somebody else's words under our name
  }
}

export function remember(run: Run): void {
  if (holdsPassword(run.text) || run.text.length > MAX_CHARS) return;
  const others = runs().filter(({ text }) => text !== run.text);
  store([run, ...others].slice(0, MAX_RUNS));
}

export function forgetRuns(): void {
  store([]);
}

function store(kept: Run[]): void {
  try {
    localStorage.setItem(key(), JSON.stringify(kept));
  } catch {
    localStorage.removeItem(key()); // full: better none than an error at every run
  }
  changes.value += 1;
}

function key(): string {
  return `tablecast.history.${me.value?.user ?? ""}`;
}
