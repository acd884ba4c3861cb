/**
 * The messages that a topic gets, as they arrive: a reader without a group, one long poll per partition.
 *
 * It keeps the newest of them, and it keeps up: when more have arrived than one request fetches it goes on near the end
 * of the log, and counts what it left out.
 */

import { signal, type Signal } from "@preact/signals";
import { consume, rows, type Message } from "./api.ts";
import { ApiError, asApiError } from "./errors.ts";
import { oncePerFrame } from "./live.ts";

export const MAX_TAILED_PARTITIONS = 4; // each is a request that waits; a browser has 6 for all of a page
export const KEPT_MESSAGES = 500; // the newest; older ones are in the browser of messages
const PAGE_MESSAGES = 100; // of one request
const FIRST_MESSAGES = 10; // that were there before, for a start
const PAUSE_MS = 250; // after messages: eyes do not follow more than a few pictures a second
const WAIT_SECONDS = 25; // proxies tend to end a request after 30
const AGAIN_MS = 2_000; // after the server could not be reached
const LOG = "SELECT start_offset, end_offset FROM system.topic_partitions WHERE topic = ? AND partition_id = ?";
const RATE_MS = 2_000; // over which messages per second are counted

export interface TailSight {
  /** The newest first. */
  messages: readonly Message[];
  /** Shown since the beginning. */
  shown: number;
  /** Left out because they came too fast. */
  skipped: number;
  perSecond: number;
  /** Some of the last seconds' messages were left out. */
  isSampled: boolean;
  error: ApiError | null;
}

const NOTHING: TailSight = { messages: [], shown: 0, skipped: 0, perSecond: 0, isSampled: false, error: null };

interface Log {
  start_offset: string;
  end_offset: string;
}

interface Count {
  at: number;
  shown: number;
  skipped: number;
}

export class Tail {
  readonly sight: Signal<TailSight> = signal(NOTHING);

  #running: AbortController | null = null;
  #messages: Message[] = [];
  #shown = 0;
  #skipped = 0;
  #error: ApiError | null = null;
  #recent: Count[] = [];
  #timer: ReturnType<typeof setInterval> | undefined;
  #lookedAt = -Infinity;
  readonly #frame = oncePerFrame(() => this.#look());
  /** The next offset of each partition. */
  readonly #next: Map<number, number>;

  /** `logs`: where each partition begins and ends. */
  constructor(
    readonly topic: string,
    logs: { partition: number; start: number; end: number }[],
  ) {
    this.#next = new Map(logs.map(({ partition, start, end }) => [partition, Math.max(start, end - FIRST_MESSAGES)]));
  }

  /** Begins, or goes on after a pause. */
  start(): void {
    if (this.#running !== null) return;
    this.#running = new AbortController();
    this.#timer = setInterval(() => this.#recent.length > 0 && this.#frame.ask(), PAUSE_MS);
    for (const partition of this.#next.keys()) void this.#follow(partition, this.#running.signal);
  }

  stop(): void {
    this.#running?.abort();
    this.#running = null;
    clearInterval(this.#timer);
    this.#frame.cancel();
  }

  async #follow(partition: number, ended: AbortSignal): Promise<void> {
    while (!ended.aborted) {
      try {
        const start = { type: "Offset", offset: this.#next.get(partition)! } as const;
        const place = { topic: this.topic, partition_id: partition, start };
        const wanted = { ...place, limit: PAGE_MESSAGES, timeout_seconds: WAIT_SECONDS };
        const { messages, has_more } = await consume(wanted, { signal: ended });
        if (ended.aborted) return; // it was here when the tail was stopped: fetched again when it goes on
        this.#take(partition, messages);
        if (messages.length > 0) await pause(PAUSE_MS);
        if (has_more) await this.#catchUp(partition, ended);
      } catch (caught) {
        if (!ended.aborted) await this.#recover(partition, asApiError(caught), ended);
      }
    }
  }

  #take(partition: number, messages: Message[]): void {
    if (this.#error !== null) this.#lookedAt = -Infinity; // it is over: say so at once
    this.#error = null;
    if (messages.length > 0) {
      this.#next.set(partition, messages.at(-1)!.offset + 1);
      this.#messages = [...messages.toReversed(), ...this.#messages].slice(0, KEPT_MESSAGES);
      this.#count(messages.length, 0);
    }
    this.#show();
  }

  /** Goes on with what one request can fetch before the end of the log. */
  async #catchUp(partition: number, ended: AbortSignal): Promise<void> {
    const [log] = await rows<Log>(LOG, [this.topic, partition], { signal: ended });
    if (log === undefined) throw new ApiError("unknown_topic", `there is no topic ${this.topic} any more`);
    const next = this.#next.get(partition)!;
    const [start, end] = [Number(log.start_offset), Number(log.end_offset)];
    const isAnother = next > end; // the topic was made anew
    const wanted = Math.max(start, end - PAGE_MESSAGES);
    if (!isAnother && next >= wanted) return;
    this.#next.set(partition, wanted);
    if (!isAnother) this.#count(0, wanted - next);
    this.#show();
  }

  /** Gone by retention: it goes on near the end. Out of reach: it tries again. Anything else ends it. */
  async #recover(partition: number, error: ApiError, ended: AbortSignal): Promise<void> {
    try {
      if (error.code === "offset_out_of_range") return await this.#catchUp(partition, ended);
    } catch (caught) {
      error = asApiError(caught);
    }
    this.#error = error;
    this.#look();
    if (error.code === "unreachable" || error.code === "overloaded") await pause(AGAIN_MS);
    else this.stop();
  }

  #count(shown: number, skipped: number): void {
    this.#shown += shown;
    this.#skipped += skipped;
    this.#recent.push({ at: Date.now(), shown, skipped });
  }

  /** At once if it was quiet; else the timer does it, for all partitions. */
  #show(): void {
    if (Date.now() - this.#lookedAt >= PAUSE_MS) this.#frame.ask();
  }

  #look(): void {
    const now = Date.now();
    this.#lookedAt = now;
    this.#recent = this.#recent.filter(({ at }) => now - at < RATE_MS);
    const sum = (of: (count: Count) => number) => this.#recent.reduce((total, count) => total + of(count), 0);
    this.sight.value = {
      messages: this.#messages,
      shown: this.#shown,
      skipped: this.#skipped,
      perSecond: (sum(({ shown, skipped }) => shown + skipped) * 1000) / RATE_MS,
      isSampled: sum(({ skipped }) => skipped) > 0,
      error: this.#error,
    };
  }
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
