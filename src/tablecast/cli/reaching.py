"""A server for Spark, whatever a command works on: the one at an address, or one in this process over a directory.

Spark's executors speak HTTP, so a directory is served for as long as the command runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tablecast.cli.console import say
from tablecast.cli.credentials import credentials
from tablecast.cli.opening import ASK_IT, explained_lock, trust
from tablecast.cli.target import Target
from tablecast.client.bulk_server import Server
from tablecast.errors import InvalidRequest, SparkMissing


@contextmanager
def reached(target: Target, *, otherwise: str) -> Iterator[Server]:
    """`otherwise`: what to say where there is no database."""
    if target.is_server:
        who = credentials(target)
        trust(target)
        ca = None if target.ca is None else str(target.ca)
        yield Server(target.address, user=who.user, password=who.password, token=who.token, ca_file=ca)
        return
    from tablecast.server.background import in_background
    from tablecast.server.settings import Settings

    if not Path(target.place).exists():
        raise InvalidRequest(f"{target.place}: there is no database; {otherwise}")
    with explained_lock(target.place, ASK_IT), in_background(Settings(data=target.place)) as served:
        say(f"{target.place} is served at {served.url} meanwhile")
        yield Server(served.url, token=served.token)


def check_spark() -> None:
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError as error:
        raise SparkMissing("this runs on Spark, which is not installed: pip install 'tablecast[spark]'") from error


def spark_settings(given: tuple[str, ...]) -> dict[str, str]:
    """Of --conf NAME=VALUE."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidRequest(f"--conf {text} has no value: write --conf NAME=VALUE, as spark.driver.memory=4g")
        found[name.strip()] = value.strip()
    return found
