"""What a client does with a statement that its server does not run."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import pytest

from tablecast.client.bulk_server import Server
from tablecast.client.on_spark import run_on_spark
from tablecast.errors import InvalidRequest, RunsOnSpark, SparkMissing
from tablecast.model.spark_job import AuditTopic, job_fields

SERVER = Server("http://127.0.0.1:1", user="ann", password="secret")


def test_without_spark_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "pyspark":
            raise ModuleNotFoundError("No module named 'pyspark'")
        return real(name, *rest)

    for name in [name for name in sys.modules if name.startswith(("tablecast.spark", "pyspark"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    refusal = RunsOnSpark("runs on Spark", job=job_fields(AuditTopic("app.ev")))
    with pytest.raises(SparkMissing, match=r'pip install "tablecast\[spark\]"'):
        run_on_spark(refusal, SERVER)


def test_a_refusal_that_names_no_job_is_not_guessed_at() -> None:
    with pytest.raises(RunsOnSpark, match="runs on Spark"):
        run_on_spark(RunsOnSpark("runs on Spark"), SERVER)
    with pytest.raises(InvalidRequest, match="does not know"):
        run_on_spark(RunsOnSpark("runs on Spark", job={"type": "copy_moon"}), SERVER)
