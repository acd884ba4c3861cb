/**
 * How the server is doing, over the last minutes: series made of the samples of `system.metrics`.
 *
 * Counters come as they are; rates and quantiles are what they grew by between two samples. The series outlive the page,
 * so that whoever comes back to it finds the minutes before, with a gap for the time away.
 */

import { effect, signal } from "@preact/signals";
import { liveRows, type LiveRows } from "./live.ts";
import { HistogramDelta, Rate, Series, type Buckets } from "./series.ts";

export interface Metric {
  name: string;
  /** JSON, with its names in order. */
  labels: string;
  value: number;
}

const NAMES = [
  "tablecast_write_latency_seconds_bucket",
  "tablecast_commit_commands_sum",
  "tablecast_commit_commands_count",
  "tablecast_commit_rows_sum",
  "tablecast_messages_in_total",
  "tablecast_messages_out_total",
  "tablecast_group_lag_messages",
  "tablecast_live_subscriptions",
  "tablecast_live_connections",
  "tablecast_pipeline_running",
  "tablecast_pipeline_lag_messages",
  "replication_online",
  "replication_outbox_size",
  "replication_peers",
  "tablecast_writes_stopped",
  "tablecast_store_bytes",
  "process_cpu_seconds_total", // always moves: a sample comes every second, also when nothing else happens
] as const;

type Name = (typeof NAMES)[number];

const QUERY = `SELECT name, labels, value FROM system.metrics WHERE name IN (${NAMES.map((name) => `'${name}'`).join(", ")})`;

export class Vitals {
  /** Commands and rows per second. */
  readonly writes = new Series(2);
  /** The median and the 99th percentile of a commit's latency, in seconds. */
  readonly latency = new Series(2);
  /** Messages per second, in and out. */
  readonly messages = new Series(2);
  /** Of all groups, in messages. */
  readonly lag = new Series(1);
  readonly commits = new Series(1);
  /** Subscriptions to live queries, and the connections that they came by. */
  readonly live = new Series(2);
  /** Pipelines that run, and messages that they have not read. */
  readonly pipelines = new Series(2);
  /** Events in the outbox, other nodes that are online, and whether this one is. */
  readonly replication = new Series(3);
  readonly topicRates = new Map<string, number | null>();

  #rates = new Map<string, Rate>();
  #latency = new HistogramDelta();
  #metrics: Metric[] = [];

  /** One sample of all. Time is in seconds. */
  sample(time: number, metrics: Metric[]): void {
    this.#metrics = metrics;
    this.writes.add(time, [
      this.#rate(time, "tablecast_commit_commands_sum"),
      this.#rate(time, "tablecast_commit_rows_sum"),
    ]);
    this.commits.add(time, [this.#rate(time, "tablecast_commit_commands_count")]);
    this.latency.add(time, this.#latency.next(this.#buckets("tablecast_write_latency_seconds_bucket"), [0.5, 0.99]));
    this.messages.add(time, [
      this.#rate(time, "tablecast_messages_in_total"),
      this.#rate(time, "tablecast_messages_out_total"),
    ]);
    this.lag.add(time, [this.total("tablecast_group_lag_messages")]);
    this.live.add(time, [this.total("tablecast_live_subscriptions"), this.total("tablecast_live_connections")]);
    this.pipelines.add(time, [
      this.total("tablecast_pipeline_running"),
      this.total("tablecast_pipeline_lag_messages"),
    ]);
    this.replication.add(time, [
      this.total("replication_outbox_size"),
      this.total("replication_peers"),
      this.total("replication_online"),
    ]);
    this.#sampleTopics(time);
  }

  has(name: Name): boolean {
    return this.#of(name).length > 0;
  }

  /** Nobody looked for a while. */
  gap(time: number): void {
    if (this.writes.length === 0) return;
    const kept = [this.writes, this.commits, this.latency, this.messages, this.lag];
    for (const series of [...kept, this.live, this.pipelines, this.replication]) series.add(time, []);
  }

  /** The sum over all labels. */
  total(name: Name): number {
    return this.#of(name).reduce((sum, { value }) => sum + value, 0);
  }

  #of(name: Name): Metric[] {
    return this.#metrics.filter((metric) => metric.name === name);
  }

  #rate(time: number, name: Name): number | null {
    return this.#named(name).next(time, this.total(name));
  }

  #named(name: string): Rate {
    const rate = this.#rates.get(name) ?? new Rate();
    this.#rates.set(name, rate);
    return rate;
  }

  #buckets(name: Name): Buckets {
    return new Map(this.#of(name).map(({ labels, value }) => [bound(JSON.parse(labels).le), value]));
  }

  #sampleTopics(time: number): void {
    for (const { labels, value } of this.#of("tablecast_messages_in_total")) {
      const { topic } = JSON.parse(labels) as { topic: string };
      this.topicRates.set(topic, this.#named(`topic ${topic}`).next(time, value));
    }
  }
}

function bound(le: string): number {
  return le === "+Inf" ? Infinity : Number(le);
}

export const vitals = new Vitals();
/** Grows with each sample. */
export const vitalsVersion = signal(0);

/** Samples as long as somebody looks. */
export function followVitals(): LiveRows<Metric> {
  const live = liveRows<Metric>(QUERY);
  vitals.gap(Date.now() / 1000);
  const stop = effect(() => {
    const metrics = live.rows.value;
    if (metrics.length === 0) return;
    vitals.sample(Date.now() / 1000, metrics);
    vitalsVersion.value = vitalsVersion.peek() + 1;
  });
  return { ...live, close: () => (stop(), live.close()) };
}
