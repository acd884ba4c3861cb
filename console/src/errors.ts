/** Everything that goes wrong between the console and its server is an ApiError, with the server's stable code. */

import { TablecastError } from "tablecast";

export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    readonly code: string,
    message: string,
    readonly details: Record<string, unknown> = {},
    /** Of the HTTP answer; 0 if there was none. */
    readonly status = 0,
  ) {
    super(message);
  }
}

export function asApiError(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (error instanceof TablecastError) return new ApiError(error.code, error.message, error.details);
  return new ApiError("console_error", error instanceof Error ? error.message : String(error));
}
