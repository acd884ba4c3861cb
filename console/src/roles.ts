/**
 * What each role is offered. The server decides what is allowed; this only keeps the console from offering what it would
 * refuse. Tests compare it with the server's matrix of roles.
 */

export type Role = "user" | "service" | "dba" | "system";

const RANK: Record<Role, number> = { user: 1, service: 2, dba: 3, system: 4 };

/** The least role of each action. */
export const LEAST = {
  "run sql": "user",
  "see system tables": "service",
  "see people": "dba", // system.users, system.audit_log, system.live_queries
  "consume topics": "service",
  "write shared tables": "service",
  "define tables and topics": "dba",
  "clear topics": "dba",
  "redrive dead letters": "dba",
  "reset groups": "dba",
  "start and stop pipelines": "dba",
} as const satisfies Record<string, Role>;

export type Action = keyof typeof LEAST;

export function allows(role: Role, action: Action): boolean {
  return RANK[role] >= RANK[LEAST[action]];
}
