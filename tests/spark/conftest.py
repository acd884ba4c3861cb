"""One Spark for all tests that need it, and a server beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parent.parent / "integration"))  # for server_fixture

if TYPE_CHECKING:
    from reading import Shop


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


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    from reading import Shop
    from server_fixture import ServerThread

    with ServerThread(tmp_path_factory.mktemp("data")) as server:
        server.sql("CREATE NAMESPACE app")
        yield Shop(server, spark)
