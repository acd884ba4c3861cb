/** Statements over `POST /v1/api/sql`: one request, one answer. Nothing is repeated, but for credentials that ended. */

import { TablecastError } from "./errors.js";
import { Shape } from "./shape.js";

/** The results of all statements of the text, in their order. */
export async function runSql(settings, sql, params, options) {
  const answer = await asked(settings, JSON.stringify({ sql, params, namespace: options.namespace }), options);
  const { results } = await answer.json();
  return results.map(({ schema, rows, row_count, message, seq }) => {
    const shape = new Shape(schema);
    return { columns: shape.columns, rows: rows.map((row) => shape.row(row)), rowCount: row_count, message, seq };
  });
}

async function asked(settings, body, options) {
  const answer = await sent(settings, body, options, false);
  if (answer.ok) return answer;
  if (answer.status !== 401 || !settings.credentials.canRenew) throw await refusal(answer);
  const again = await sent(settings, body, options, true);
  if (again.ok) return again;
  throw await refusal(again);
}

async function sent({ fetch, sqlUrl, credentials }, body, { idempotencyKey, signal }, refused) {
  const headers = { Authorization: await credentials.header(refused), "Content-Type": "application/json" };
  if (idempotencyKey !== undefined) headers["Idempotency-Key"] = idempotencyKey;
  try {
    return await fetch(sqlUrl, { method: "POST", headers, body, signal });
  } catch (cause) {
    if (signal?.aborted) throw cause;
    const message = `${sqlUrl} cannot be reached: ${cause.cause?.message ?? cause.message}`;
    throw new TablecastError("unreachable", message, { url: sqlUrl }, { cause });
  }
}

async function refusal(answer) {
  try {
    const { code, message, details } = (await answer.json()).error;
    return new TablecastError(code, message, details);
  } catch {
    // Not the server's own words: something between it and us answered.
    const code = answer.status === 502 || answer.status === 504 ? "unreachable" : "database_error";
    return new TablecastError(code, `the answer has status ${answer.status} and no error in it`, { status: answer.status });
  }
}
