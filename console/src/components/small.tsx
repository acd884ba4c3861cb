/** Small things to show: badges, bars, times, code, figures. */

import type { ComponentChildren } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ago } from "../format.ts";
import { toast } from "./toasts.tsx";

export type Tone = "plain" | "good" | "warn" | "bad" | "accent";

export function Badge(props: { tone?: Tone; title?: string; children: ComponentChildren }) {
  return (
    <span class={`badge ${props.tone ?? "plain"}`} title={props.title}>
      {props.children}
    </span>
  );
}

/** How much of something, beside its number. */
export function Bar(props: { value: number; max: number; tone?: Tone; label: string }) {
  const share = props.max > 0 ? Math.min(1, props.value / props.max) : 0;
  return (
    <span class="bar" role="img" aria-label={props.label} title={props.label}>
      <span class={`bar-fill ${props.tone ?? "accent"}`} style={{ width: `${share * 100}%` }} />
    </span>
  );
}

const RETELL_MS = 10_000; // how old a time is, told anew

/** How long ago, with the time itself on hovering. */
export function Time(props: { at: string | number | Date | null }) {
  const now = useSignal(Date.now());
  useEffect(() => {
    const timer = setInterval(() => (now.value = Date.now()), RETELL_MS);
    return () => clearInterval(timer);
  }, []);
  if (props.at === null) return <span class="faint">never</span>;
  const time = new Date(props.at);
  return (
    <time dateTime={time.toISOString()} title={time.toISOString()}>
      {ago(time, Math.max(now.value, Date.now()))}
    </time>
  );
}

/** A figure that matters, with what it is. */
export function Figure(props: { label: string; value: string; note?: string; tone?: Tone }) {
  return (
    <div class={`figure ${props.tone ?? ""}`}>
      <dt>{props.label}</dt>
      <dd>
        {props.value}
        {props.note && <small>{props.note}</small>}
      </dd>
    </div>
  );
}

/** Text of a program, to be copied. */
export function Code(props: { children: string; label?: string }) {
  return (
    <div class="code">
      <pre tabIndex={0} aria-label={props.label ?? "code"} role="region">
        <code>{props.children}</code>
      </pre>
      <button type="button" class="quiet small" onClick={() => void copy(props.children)}>
        Copy
      </button>
    </div>
  );
}

export async function copy(text: string, what = "Copied"): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast(what);
  } catch {
    toast("This browser does not let the page copy; it may need https.", "bad");
  }
}
