/** What a pipeline was defined as: its inputs, and its query in the words of who wrote it. */

import type { PipelineRow } from "./pipeline_data.ts";

export interface Input {
  kind: "topic" | "table";
  name: string;
  /** What the query calls it. */
  view?: string;
}

interface Definition {
  inputs?: Input[];
  options?: { dead_letter?: string | null };
}

/** Of a pipeline in the catalog all is known; one of a file tells the topics it reads. */
export function definitionOf(row: PipelineRow): { inputs: Input[]; deadLetter: string | null } {
  const definition = row.definition === null ? {} : (JSON.parse(row.definition) as Definition);
  const named = row.inputs === "" ? [] : row.inputs.split(", ").map((name): Input => ({ kind: "topic", name }));
  return { inputs: definition.inputs ?? named, deadLetter: definition.options?.dead_letter ?? null };
}

/** As it was written: Spark sees views, whose names have lost their namespaces. */
export function queryOf(row: PipelineRow): string {
  return definitionOf(row).inputs.reduce(
    (text, { kind, name, view }) => (view === undefined ? text : named(text, view, `${kind.toUpperCase()} ${name}`)),
    row.sql ?? "",
  );
}

/** Where a view is read; in `view`.column it is a name like any other. */
function named(text: string, view: string, name: string): string {
  const quoted = "`" + view.replace(/[.*+?^${}()|[\]\\]/g, "\\$&") + "`";
  return text.replace(new RegExp(`(\\b(?:FROM|JOIN)\\s+|,\\s*)${quoted}(?!\\s*\\.)`, "gi"), (_, before) => before + name);
}
