/** Pipelines as the system table tells them. */

import type { Tone } from "../components/index.ts";
import { useLiveRows } from "../live.ts";

export interface PipelineRow {
  name: string;
  target: string | null;
  sql: string | null;
  desired_state: "running" | "stopped";
  state: string;
  input_rows_per_second: number | null;
  processed_rows_per_second: number | null;
  rows_in: string | null;
  rows_out: string | null;
  rejected: string | null;
  lag: string | null;
  batch_id: string | null;
  last_error: string | null;
  last_batch_at: string | null;
  restarts: string | null;
  runner: string | null;
  definition: string | null;
  inputs: string;
}

const PIPELINES = `SELECT name, target, sql, desired_state, state, input_rows_per_second, processed_rows_per_second,
  rows_in, rows_out, rejected, lag, batch_id, last_error, last_batch_at, restarts, runner, definition, inputs
  FROM system.pipelines`;

export const usePipelines = () => useLiveRows<PipelineRow>(PIPELINES);
export const usePipeline = (name: string) => useLiveRows<PipelineRow>(`${PIPELINES} WHERE name = ?`, [name]);

const TONES: Record<string, Tone> = { running: "good", starting: "accent", stopped: "plain", failed: "bad" };

export function toneOf(state: string): Tone {
  return TONES[state] ?? "warn";
}
