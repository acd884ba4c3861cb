"""`python -m bench.spark [--quick] [--only NAME …] [--json FILE]`: Spark with tablecast, with Parquet, and with nothing."""

from __future__ import annotations

from bench.run import Workload, main
from bench.spark import workloads as measured
from bench.spark.growth import growth


def workloads(quick: bool) -> dict[str, Workload]:
    rounds, rows = (1, 500_000) if quick else (3, 5_000_000)
    return {
        "read": lambda path: measured.reading(path, rounds, rows),
        "load": lambda path: measured.loading(path, rounds, rows),
        "scaling": lambda path: measured.scaling(path, rows // 2),
        "growth": lambda path: growth(path, rows * 2 // 5),
        "latency": lambda path: measured.latency(path, 20 if quick else 60),
    }


if __name__ == "__main__":
    raise SystemExit(main(__doc__, workloads))
