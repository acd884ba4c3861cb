"""`python -m bench.edge [--quick] [--only NAME …] [--json FILE]`: replication over MQTT beside paho in a bare loop."""

from __future__ import annotations

from bench.edge import workloads as measured
from bench.run import Workload, main


def workloads(quick: bool) -> dict[str, Workload]:
    return {
        "events": lambda path: measured.events(path, 1 if quick else 3, 5_000 if quick else 20_000),
        "compare": lambda path: measured.comparing(path, 10_000 if quick else 100_000, 10),
    }


if __name__ == "__main__":
    raise SystemExit(main(__doc__, workloads))
