"""`python -m bench.live [--quick] [--only NAME …] [--json FILE]`: live queries, and what the sockets alone could do."""

from __future__ import annotations

from bench.live import workloads as measured
from bench.run import Workload, main


def workloads(quick: bool) -> dict[str, Workload]:
    rounds, seconds = (1, 1.0) if quick else (3, 3.0)
    sockets = 1_000 if quick else 10_000
    return {
        "fan-out": lambda path: measured.fan_out(path, rounds, sockets, 40),
        "different": lambda path: measured.different_queries(path, rounds, 100 if quick else 1_000, 60),
        "indexed": lambda path: measured.indexed(
            path, rounds, (1_000, 10_000 if quick else 100_000), 70, 1_000 if quick else 5_000
        ),
        "latency": lambda path: measured.latency(path, 100 if quick else 500),
        "idle": lambda path: measured.idle_subscriptions(path, rounds, seconds, sockets),
    }


if __name__ == "__main__":
    raise SystemExit(main(__doc__, workloads))
