/** A question before something that cannot be taken back. The browser's own dialog keeps the focus inside. */

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

export interface Question {
  title: string;
  /** What will happen, in numbers. */
  body: ComponentChildren;
  /** What the button says: the verb. */
  action: string;
  danger?: boolean;
}

const asked = signal<{ question: Question; answer: (yes: boolean) => void } | null>(null);

/** Whether they said yes. Escape is no. */
export function confirm(question: Question): Promise<boolean> {
  asked.value?.answer(false);
  return new Promise((resolve) => {
    asked.value = {
      question,
      answer: (yes) => {
        asked.value = null;
        resolve(yes);
      },
    };
  });
}

/** Once, in the frame of the app. */
export function Confirm() {
  const current = asked.value;
  if (current === null) return null;
  const { question, answer } = current;
  return (
    <Dialog title={question.title} onClose={() => answer(false)}>
      <div>{question.body}</div>
      <div class="dialog-actions">
        <button type="button" onClick={() => answer(false)}>
          Cancel
        </button>
        <button type="button" class={question.danger ? "danger" : "primary"} onClick={() => answer(true)}>
          {question.action}
        </button>
      </div>
    </Dialog>
  );
}

export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const { activeElement } = document;
    dialog.current?.showModal();
    return () => (activeElement instanceof HTMLElement ? activeElement.focus() : undefined);
  }, []);
  return (
    <dialog ref={dialog} aria-labelledby="dialog-title" onClose={props.onClose}>
      <h2 id="dialog-title">{props.title}</h2>
      {props.children}
    </dialog>
  );
}
