/** The pages, in the order of the menu. Each is loaded when it is first opened. */

import type { ComponentType } from "preact";
import type { Action } from "../roles.ts";
import { may } from "../session.ts";

export interface PageEntry {
  /** The first part of its route. */
  id: string;
  title: string;
  /** After `g`. */
  key: string;
  needs: Action;
  load: () => Promise<{ default: ComponentType }>;
}

export const PAGES: PageEntry[] = [
  { id: "overview", title: "Overview", key: "o", needs: "see system tables", load: () => import("./overview.tsx") },
  { id: "sql", title: "SQL", key: "s", needs: "run sql", load: () => import("./sql.tsx") },
  { id: "topics", title: "Topics", key: "t", needs: "see system tables", load: () => import("./topics.tsx") },
  { id: "groups", title: "Groups", key: "r", needs: "see system tables", load: () => import("./groups.tsx") },
  { id: "pipelines", title: "Pipelines", key: "p", needs: "see system tables", load: () => import("./pipelines.tsx") },
  { id: "edge", title: "Edge", key: "e", needs: "see system tables", load: () => import("./edge.tsx") },
  { id: "jobs", title: "Jobs", key: "j", needs: "see system tables", load: () => import("./jobs.tsx") },
  { id: "audit", title: "Audit", key: "a", needs: "see people", load: () => import("./audit.tsx") },
];

/** What the role may see. */
export function offered(): PageEntry[] {
  return PAGES.filter(({ needs }) => may(needs));
}
