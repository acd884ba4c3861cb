"""`python -m bench.server [--quick] [--only NAME …] [--json FILE]`: the server, beside PostgreSQL, NATS and Redis."""

from __future__ import annotations

from bench.run import Workload, main
from bench.server.committed import commit_to_consumer
from bench.server.consuming import consuming
from bench.server.waking import wake_up
from bench.server.writing import batches, single_writes


def workloads(quick: bool) -> dict[str, Workload]:
    rounds, seconds = (3, 1.0) if quick else (5, 3.0)
    return {
        "single": lambda path: single_writes(path, rounds, seconds),
        "batches": lambda path: batches(path, rounds, seconds),
        "consume": lambda path: consuming(path, 1 if quick else 3, 50_000 if quick else 500_000),
        "commit": lambda path: commit_to_consumer(path, rounds, 100 if quick else 300),
        "wake": lambda path: wake_up(path, rounds, 100 if quick else 300),
    }


if __name__ == "__main__":
    raise SystemExit(main(__doc__, workloads))
