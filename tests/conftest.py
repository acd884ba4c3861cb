"""How tests run.

Property tests: without deadlines, with other examples each time, and with a way back to any failure. What needs Spark
comes first: it stays on one worker, where one JVM serves all of it, and would else be what everybody waits for.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "tablecast",
    deadline=None,  # a slow machine is not a wrong program
    derandomize=False,
    print_blob=True,  # what to paste into @reproduce_failure
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("tablecast"), max_examples=2_000)
settings.load_profile("tablecast")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
