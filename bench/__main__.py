"""`python -m bench [--quick] [--only NAME …] [--json FILE]`: the engine, beside SQLite and raw RocksDB."""

from __future__ import annotations

from bench import reads, recovery, writes
from bench.run import Workload, main
from bench.slow_disk import slow_disk


def workloads(quick: bool) -> dict[str, Workload]:
    rounds, seconds = (3, 1.0) if quick else (5, 2.0)
    million = 100_000 if quick else 1_000_000
    return {
        "single": lambda path: writes.single_rows(path, rounds, seconds),
        "slow_disk": lambda path: slow_disk(path, rounds, seconds),
        "batches": lambda path: writes.batches(path, rounds, seconds),
        "route": lambda path: writes.route_cost(path, rounds, seconds),
        "arrow": lambda path: reads.topic_as_arrow(path, rounds, million),
        "lookup": lambda path: reads.primary_key(path, rounds, seconds),
        "open": lambda path: recovery.open_after_kill(path, rounds, 10_000, million),
        "memory": lambda path: recovery.flat_memory(path, million * 5, million // 2),
    }


if __name__ == "__main__":
    raise SystemExit(main(__doc__, workloads))
