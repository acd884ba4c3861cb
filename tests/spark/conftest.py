"""A server beside the Spark that all tests share."""

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


@pytest.fixture(scope="module")
def shop(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    from reading import Shop
    from server_fixture import ServerThread

    with ServerThread(tmp_path_factory.mktemp("data")) as server:
        server.sql("CREATE NAMESPACE app")
        yield Shop(server, spark)
