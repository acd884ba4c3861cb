/** Lag of groups: partitions come one by one, a group is their sum. */

export interface GroupRow {
  topic: string;
  group_id: string;
  partition_id: string;
  committed: string;
  claimed: string;
  end_offset: string;
  lag: string;
  lag_seconds: number | null;
}

export interface GroupLag {
  topic: string;
  group_id: string;
  partitions: number;
  claimed: number;
  lag: number;
  /** Of the slowest partition; null if that is not known any more. */
  lag_seconds: number | null;
}

const LATE_SECONDS = 60; // a group whose oldest message waits longer is shown as late

export function isLate(group: { lag: number; lag_seconds: number | null }): boolean {
  return group.lag > 0 && (group.lag_seconds === null || group.lag_seconds > LATE_SECONDS);
}

/** The furthest behind first. */
export function byGroup(rows: GroupRow[]): GroupLag[] {
  const groups = new Map<string, GroupLag>();
  for (const row of rows) {
    const key = `${row.topic} ${row.group_id}`;
    const before = groups.get(key) ?? { ...row, partitions: 0, claimed: 0, lag: 0, lag_seconds: 0 };
    groups.set(key, {
      topic: row.topic,
      group_id: row.group_id,
      partitions: before.partitions + 1,
      claimed: before.claimed + Number(row.claimed),
      lag: before.lag + Number(row.lag),
      lag_seconds: latest(before.lag_seconds, row.lag_seconds),
    });
  }
  return [...groups.values()].sort((a, b) => b.lag - a.lag || a.topic.localeCompare(b.topic));
}

function latest(a: number | null, b: number | null): number | null {
  return a === null || b === null ? null : Math.max(a, b);
}
