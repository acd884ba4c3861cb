/** One request to the server this page came from: JSON in, JSON out, errors as ApiError. */

import { ApiError } from "./errors.ts";

/** The server may be below a path, behind a proxy: everything is relative to the page. */
export const SERVER = new URL(".", document.baseURI);

export interface RequestOptions {
  token?: string;
  signal?: AbortSignal;
  idempotencyKey?: string;
}

export async function request<T>(
  method: string,
  path: string,
  body?: unknown,
  options: RequestOptions = {},
): Promise<T> {
  const answer = await sent(method, path, body, options);
  if (answer.ok) return (await answer.json()) as T;
  throw await refusal(answer);
}

async function sent(method: string, path: string, body: unknown, options: RequestOptions): Promise<Response> {
  const headers: Record<string, string> = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (options.token !== undefined) headers.Authorization = `Bearer ${options.token}`;
  if (options.idempotencyKey !== undefined) headers["Idempotency-Key"] = options.idempotencyKey;
  const init: RequestInit = { method, headers, signal: options.signal ?? null };
  init.body = body === undefined ? null : JSON.stringify(body);
  init.credentials = "omit"; // or a browser answers 401 with a dialog of its own
  try {
    return await fetch(new URL(`v1/api/${path}`, SERVER), init);
  } catch (cause) {
    if (options.signal?.aborted) throw new ApiError("cancelled", "The answer is not waited for any more.");
    throw new ApiError("unreachable", `The server does not answer (${(cause as Error).message}). Is it running?`);
  }
}

async function refusal(answer: Response): Promise<ApiError> {
  try {
    const { code, message, details } = (await answer.json()).error;
    return new ApiError(code, message, details, answer.status);
  } catch {
    // Not the server's own words: something between it and us answered.
    return new ApiError("unreachable", `The answer has status ${answer.status} and no error in it.`, {}, answer.status);
  }
}
