/** Short messages about what was just done, read out by screen readers. */

import { signal } from "@preact/signals";

type ToastTone = "good" | "bad";
interface Toast {
  id: number;
  text: string;
  tone: ToastTone;
}

const SHOWN_MS = 5_000;
const MAX_SHOWN = 4; // older ones go

const toasts = signal<Toast[]>([]);
let numbers = 0;

export function toast(text: string, tone: ToastTone = "good"): void {
  const id = ++numbers;
  toasts.value = [...toasts.value, { id, text, tone }].slice(-MAX_SHOWN);
  setTimeout(() => forget(id), SHOWN_MS);
}

function forget(id: number): void {
  toasts.value = toasts.value.filter((other) => other.id !== id);
}

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map(({ id, text, tone }) => (
        <div key={id} class={`toast ${tone}`}>
          <span>{text}</span>
          <button type="button" class="quiet small" aria-label="Dismiss" onClick={() => forget(id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}
