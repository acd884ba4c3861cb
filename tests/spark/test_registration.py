"""Credentials that are given once, when a session learns the format, and are in no option."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.cloudpickle import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from reading import Shop
from server_fixture import PASSWORD

import tablecast.spark
from tablecast.errors import InvalidRequest, SecretInOption
from tablecast.spark.registration import _data_source

SECRET = "s3cret-of-the-reader"


@pytest.fixture(scope="module")
def table(shop: Shop) -> str:
    shop.server.sql("CREATE TABLE app.known (id BIGINT PRIMARY KEY); INSERT INTO app.known VALUES (1), (2)")
    shop.server.sql(f"CREATE USER 'reader' WITH PASSWORD '{SECRET}' ROLE 'service'")
    return "app.known"


@pytest.fixture
def forgetting(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    tablecast.spark.register(spark)


def test_reads_and_writes_need_no_credentials_of_their_own(shop: Shop, table: str, forgetting: SparkSession) -> None:
    known = tablecast.spark.register(forgetting, user="reader", password=SECRET)
    assert known is forgetting
    where = {"url": shop.server.url, "table": table}
    found = known.read.format("tablecast").options(**where).load()
    assert found.count() == 2
    assert SECRET not in found._jdf.queryExecution().toString()
    known.range(10, 13).write.format("tablecast").options(**where).mode("append").save()
    assert known.read.format("tablecast").options(**where).load().count() == 5


def test_a_token_likewise(shop: Shop, table: str, forgetting: SparkSession) -> None:
    token = shop.server.post("/auth/login", {"user": "reader", "password": SECRET}, user=None).json()["access_token"]
    known = tablecast.spark.register(forgetting, token=token)
    assert known.read.format("tablecast").options(url=shop.server.url, table=table).load().count() >= 2


def test_credentials_in_options_are_taken_instead(shop: Shop, table: str, forgetting: SparkSession) -> None:
    known = tablecast.spark.register(forgetting, user="reader", password="not the password")
    reading = known.read.format("tablecast").options(url=shop.server.url, table=table)
    with pytest.raises(AnalysisException, match="reader"):
        reading.load()
    assert reading.options(User="system", PassWord=PASSWORD).load().count() >= 2


@pytest.mark.parametrize(
    "given",
    [{"user": "a"}, {"password": "b"}, {"user": "a", "token": "c"}, {"user": "a", "password": "b", "token": "c"}],
)
def test_half_of_them_or_both_kinds_are_refused(spark: SparkSession, given: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="a user with a password, or a token"):
        tablecast.spark.register(spark, **given)


@pytest.mark.parametrize("option", ["password", "Token"])
def test_over_connect_a_secret_is_no_option(option: str) -> None:
    made = cloudpickle.loads(cloudpickle.dumps(_data_source({}, is_remote=True)))
    with pytest.raises(SecretInOption, match=f'option "{option.lower()}" over Spark Connect .*register') as refused:
        made({"url": "http://127.0.0.1:1", "user": "reader", option: SECRET})
    assert SECRET not in str(refused.value)
    assert made({"url": "http://127.0.0.1:1", "passwordFile": "/run/secret"}).options["passwordFile"] == "/run/secret"


@pytest.mark.parametrize("option", ["passWord", "token"])
def test_nor_where_spark_alone_registered_the_format(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"url": "http://127.0.0.1:1", option: SECRET}
    assert tablecast.spark.TablecastDataSource(given).options[option] == SECRET
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "default")  # as Spark says it to whom no Connect client sent
    assert tablecast.spark.TablecastDataSource(given).options[option] == SECRET
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "0c1b8a0e-7d7c-4c53-8f0e-1f6a7b7c9d10")
    with pytest.raises(SecretInOption, match=f'option "{option.lower()}" .*change it') as refused:
        tablecast.spark.TablecastDataSource(given)
    assert SECRET not in str(refused.value)


def test_credentials_of_the_session_are_no_options_of_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_JOB_ARTIFACT_UUID", "0c1b8a0e-7d7c-4c53-8f0e-1f6a7b7c9d10")
    made = cloudpickle.loads(cloudpickle.dumps(_data_source({"token": SECRET}, is_remote=True)))
    assert made({"table": "app.known"}).options["token"] == SECRET


def test_the_class_tells_nobody() -> None:
    made = _data_source({"user": "reader", "password": SECRET}, is_remote=True)
    assert SECRET not in repr(made) + repr(made({"table": "app.known"})) + repr(vars(made))
    assert SECRET.encode() not in cloudpickle.dumps(made)  # a Connect server may log the bytes
