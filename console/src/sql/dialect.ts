/** tablecast's words for the editor: those of its own statements, and of the query engine's SELECT. */

import { SQLDialect } from "@codemirror/lang-sql";

const KEYWORDS = words(`
  access_level ack add alias all alter and any as asc begin between by cascade case check clear column commit conflict
  constraint consume create cross default delete desc describe distinct do drop earliest else end except excluded execute
  exists explain from full grant group having if ilike in inner insert intersect into is join key latest left like limit
  nack namespace namespaces not nothing null offset on or order outer over partition partitions pipeline pipelines password primary
  redrive rename replicate reset restrict returning right role rollback select set shared show source start stop stream table
  tables then timestamp to topic topics transaction ttl_seconds union update upto user using values when where window with
  payload backfill retention_seconds retention_max_bytes dedup_window_seconds max_deliveries dead_letter
`);
const TYPES = words(`
  bigint binary blob bool boolean bytea bytes date datetime decimal double float int int2 int4 int8 integer json jsonb
  numeric real smallint string text time timestamp timestamptz uuid varbinary varchar
`);
const FUNCTIONS = words(`
  abs avg cast ceil coalesce concat contains count current_timestamp current_user date_part date_trunc extract floor
  greatest least length lower ltrim max min now nullif replace round rtrim snowflake_id starts_with substring sum trim
  try_cast upper uuid_v7 false true
`);

/** As the parser of the editor takes them: with one space in between. */
function words(text: string): string {
  return text.trim().split(/\s+/).join(" ");
}

export const TABLECAST = SQLDialect.define({
  keywords: KEYWORDS,
  types: TYPES,
  builtin: FUNCTIONS,
  operatorChars: "*+-%<>!=&|~^/?",
  identifierQuotes: '"',
  slashComments: false,
  hashComments: false,
});
