/** Parameters as JSON carries them. What JSON would change without a word is refused. */

import { TablecastError } from "./errors.js";

const BYTES_AT_ONCE = 8192; // arguments of one call; engines allow some ten thousand

export function toParams(values) {
  if (!Array.isArray(values)) {
    throw new TablecastError("invalid_request", "params is an array with a value for each ? of the statement");
  }
  return values.map(toParam);
}

function toParam(value, index) {
  switch (typeof value) {
    case "bigint":
      return Number.isSafeInteger(Number(value)) ? Number(value) : String(value);
    case "number":
      return Number.isFinite(value) ? value : refuse(index, `${value} is not a number that JSON has`);
    case "undefined":
    case "function":
    case "symbol":
      return refuse(index, `${typeof value} is no value; NULL is null`);
    default:
      return toObjectParam(value);
  }
}

function toObjectParam(value) {
  if (value instanceof Date) return value.toISOString();
  if (value instanceof ArrayBuffer) return { $bytes: toBase64(new Uint8Array(value)) };
  if (ArrayBuffer.isView(value)) {
    return { $bytes: toBase64(new Uint8Array(value.buffer, value.byteOffset, value.byteLength)) };
  }
  return value; // text, a boolean, null, or a value of a JSON column
}

function refuse(index, why) {
  throw new TablecastError("type_mismatch", `parameter ${index + 1}: ${why}`, { parameter: index + 1 });
}

export function toBase64(bytes) {
  let text = "";
  for (let start = 0; start < bytes.length; start += BYTES_AT_ONCE) {
    text += String.fromCharCode(...bytes.subarray(start, start + BYTES_AT_ONCE));
  }
  return btoa(text);
}
