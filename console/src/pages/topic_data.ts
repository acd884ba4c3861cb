/** Topics as the system tables tell them. */

import { effect, signal, type ReadonlySignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { liveRows, useLiveRows } from "../live.ts";
import { Rate } from "../series.ts";

export interface TopicRow {
  namespace: string;
  name: string;
  alias: string | null;
  partitions: string;
  sources: string;
  messages: string;
  bytes: string;
  retention_seconds: string | null;
  retention_max_bytes: string | null;
  dedup_window_seconds: string | null;
  max_deliveries: string | null;
  dead_letter: string | null;
}

export interface SourceRow {
  topic: string;
  table_name: string;
  ops: string;
  filter: string | null;
  partition_by: string | null;
  payload: "key" | "full" | "diff";
}

export interface OffsetRow {
  topic: string;
  partition_id: string;
  start_offset: string;
  end_offset: string;
  messages: string;
}

const TOPICS = `SELECT namespace, name, alias, partitions, sources, messages, bytes, retention_seconds,
  retention_max_bytes, dedup_window_seconds, max_deliveries, dead_letter FROM system.topics`;
const SOURCES = "SELECT topic, table_name, ops, filter, partition_by, payload FROM system.topic_sources";
const OFFSETS = "SELECT topic, partition_id, start_offset, end_offset, messages FROM system.topic_partitions";

export const useTopics = () => useLiveRows<TopicRow>(TOPICS);
export const useAllOffsets = () => useLiveRows<OffsetRow>(OFFSETS);
export const useSources = (topic: string) => useLiveRows<SourceRow>(`${SOURCES} WHERE topic = ?`, [topic]);
export const useOffsets = (topic: string) => useLiveRows<OffsetRow>(`${OFFSETS} WHERE topic = ?`, [topic]);

export function useTopic(fullName: string) {
  const [namespace = "", name = ""] = fullName.split(".");
  return useLiveRows<TopicRow>(`${TOPICS} WHERE namespace = ? AND name = ?`, [namespace, name]);
}

export function fullNameOf(topic: { namespace: string; name: string }): string {
  return `${topic.namespace}.${topic.name}`;
}

// --- how fast they are ---

export interface TopicRate {
  in: number | null;
  out: number | null;
}

interface Metric {
  name: string;
  labels: string;
  value: number;
}

const DIRECTIONS = { tablecast_messages_in_total: "in", tablecast_messages_out_total: "out" } as const;
const STILL: TopicRate = { in: 0, out: 0 };

// The processor's time always moves: a sample comes every second, also when no message does, and rates fall to 0.
const METRICS = `SELECT name, labels, value FROM system.metrics
  WHERE name IN ('tablecast_messages_in_total', 'tablecast_messages_out_total', 'process_cpu_seconds_total')`;

export interface TopicRates {
  /** Grows with each sample. */
  version: number;
  of(topic: string): TopicRate;
}

/** Messages per second of every topic, as long as the component is there. */
export function useTopicRates(): ReadonlySignal<TopicRates> {
  const followed = useMemo(followRates, []);
  useEffect(() => followed.close, []);
  return followed.rates;
}

function followRates() {
  const live = liveRows<Metric>(METRICS);
  const counters = new Map<string, Rate>();
  const rates = signal<TopicRates>({ version: 0, of: () => ({ in: null, out: null }) });
  const stop = effect(() => {
    if (live.rows.value.length === 0) return;
    const found = sampled(live.rows.value, counters, Date.now() / 1000);
    rates.value = { version: rates.peek().version + 1, of: (topic) => found.get(topic) ?? STILL };
  });
  return { rates, close: () => (stop(), live.close()) };
}

function sampled(metrics: Metric[], counters: Map<string, Rate>, time: number): Map<string, TopicRate> {
  const found = new Map<string, TopicRate>();
  for (const { name, labels, value } of metrics) {
    if (!(name in DIRECTIONS)) continue;
    const { topic } = JSON.parse(labels) as { topic: string };
    const counter = counters.get(name + labels) ?? new Rate();
    counters.set(name + labels, counter);
    const direction = DIRECTIONS[name as keyof typeof DIRECTIONS];
    found.set(topic, { ...STILL, ...found.get(topic), [direction]: counter.next(time, value) });
  }
  return found;
}
