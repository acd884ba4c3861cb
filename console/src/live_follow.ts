/** Follows a live query into a `LiveWindow`, and paints it: in the next frame, or a few times a second when it is fast. */

import { signal, type ReadonlySignal } from "@preact/signals";
import { asApiError } from "./errors.ts";
import { liveClient, type LiveState } from "./live.ts";
import { FAST_PER_SECOND, LiveWindow, SAMPLE_MS, type View } from "./live_window.ts";

export interface Followed {
  view: ReadonlySignal<View>;
  state: ReadonlySignal<LiveState>;
  columns: ReadonlySignal<string[]>;
  close(): void;
}

const CHANGES_AT_ONCE = 500; // then the page has its turn: some two milliseconds
const LOOK_MS = 50; // for the beginning of a result without rows: no change says that it is there
const SETTLE_MS = 300; // a paint after the last change: marks fade, the rate falls to nothing

export function follow(sql: string): Followed {
  const window = new LiveWindow();
  const view = signal(window.view(Date.now()));
  const state = signal<LiveState>({ is: "loading" });
  const columns = signal<string[]>([]);
  const changes = liveClient().live(sql);
  const painter = new Painter(() => paint());

  const paint = () => {
    const now = Date.now();
    view.value = window.view(now);
    columns.value = changes.columns;
    if (state.peek().is === "loading") state.value = { is: "live" };
    if (window.isMoving(now)) painter.settle();
  };
  const read = async () => {
    let taken = 0;
    for await (const change of changes) {
      window.apply(change, Date.now());
      painter.ask(view.peek().perSecond >= FAST_PER_SECOND ? SAMPLE_MS : 0);
      if (++taken % CHANGES_AT_ONCE === 0) await otherTasks();
    }
  };
  const looking = setInterval(() => {
    if (state.peek().is === "loading" && changes.columns.length > 0) paint();
    if (state.peek().is !== "loading") clearInterval(looking);
  }, LOOK_MS);
  read().catch((error: unknown) => (state.value = { is: "ended", error: asApiError(error) }));
  const close = () => {
    clearInterval(looking);
    changes.close();
    painter.stop();
  };
  return { view, state, columns, close };
}

/** Input and painting come before the next batch. */
function otherTasks(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve));
}

/** One paint at a time: in the next frame, but no sooner than so long after the one before. */
class Painter {
  #timer: ReturnType<typeof setTimeout> | undefined;
  #settling: ReturnType<typeof setTimeout> | undefined;
  #frame = 0;
  #isAsked = false;
  #paintedAt = -Infinity;
  readonly #paint: () => void;

  constructor(paint: () => void) {
    this.#paint = paint;
  }

  ask(everyMs: number): void {
    if (this.#isAsked) return;
    this.#isAsked = true;
    const wait = this.#paintedAt + everyMs - performance.now();
    if (wait <= 0) this.#nextFrame();
    else this.#timer = setTimeout(() => this.#nextFrame(), wait);
  }

  settle(): void {
    clearTimeout(this.#settling);
    this.#settling = setTimeout(() => this.ask(0), SETTLE_MS);
  }

  stop(): void {
    clearTimeout(this.#timer);
    clearTimeout(this.#settling);
    cancelAnimationFrame(this.#frame);
    this.#isAsked = true;
  }

  #nextFrame(): void {
    this.#frame = requestAnimationFrame(() => {
      this.#isAsked = false;
      this.#paintedAt = performance.now();
      this.#paint();
    });
  }
}
