/** Where the console is: hash routes, so that the server serves one page. `#/topics/app.orders?partition=1`. */

import { signal } from "@preact/signals";

export interface Route {
  /** The first part of the path; "" at the very beginning. */
  page: string;
  /** The parts after it. */
  path: string[];
  query: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...rest] = path.split("/").map(decoded);
  return { page, path: rest.filter((part) => part !== ""), query: new URLSearchParams(query) };
}

/** What somebody typed into the address need not be well-formed. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function href(page: string, path: string[] = [], query: Record<string, string> = {}): string {
  const search = new URLSearchParams(query).toString();
  return `#/${[page, ...path].map(encodeURIComponent).join("/")}${search && `?${search}`}`;
}

export const route = signal<Route>(parseRoute(globalThis.location?.hash ?? ""));

globalThis.addEventListener?.("hashchange", () => (route.value = parseRoute(location.hash)));

export function go(page: string, path: string[] = [], query: Record<string, string> = {}): void {
  location.hash = href(page, path, query);
}

/** The same place with another query, without a step in the history: filters, tabs. */
export function setQuery(query: Record<string, string>): void {
  const { page, path } = route.value;
  history.replaceState(null, "", href(page, path, query));
  route.value = parseRoute(location.hash);
}
