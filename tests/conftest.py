"""How tests run.

Property tests draw the same examples everywhere, every time: a change is judged by what it changes. `make fuzz` draws new
ones. What it finds becomes an explicit `@example` beside its fix.

What needs Spark is whatever is under tests/spark, and tests elsewhere that say `on_spark` in their names. It comes first
and stays on one of pytest's workers: there one JVM serves all of it, and it would else be what everybody waits for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

settings.register_profile(
    "tablecast",
    max_examples=50,  # of each property; `make fuzz` draws more
    deadline=None,  # a slow machine is not a wrong program
    derandomize=True,
    print_blob=True,  # what to paste into @reproduce_failure
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fuzz", settings.get_profile("tablecast"), max_examples=100, derandomize=False, database=None)
settings.register_profile("thorough", settings.get_profile("fuzz"), max_examples=2_000)
settings.load_profile("tablecast")


# --- who runs what ----------------------------------------------------------------------------------------------


def needs_spark(nodeid: str) -> bool:
    path, _, name = nodeid.partition("::")
    return "spark" in Path(path).parent.parts or "on_spark" in name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and not needs_spark(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid} uses Spark: say on_spark in its name, or move it to tests/spark")
    items.sort(key=lambda item: not needs_spark(item.nodeid))


class OneSparkWorker(LoadScopeScheduling):
    """All that needs Spark is one piece of work; of the rest each test is one, for whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if needs_spark(nodeid) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneSparkWorker | None:
    """In place of the scheduler that `-n` alone gives; one that was asked for by name stays."""
    return OneSparkWorker(config, log) if config.getoption("dist") == "load" else None


# --- Spark ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """local[2], with the settings that users get, and a start that is a little shorter."""
    from tablecast.spark import session

    made = session(
        "local[2]",
        "tablecast tests",
        **{
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.driver.memory": "1g",
            "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()
