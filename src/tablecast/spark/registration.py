"""Making `format("tablecast")` known to a session, with credentials that no option carries.

Spark keeps the data source's class as pickled bytes, which it neither shows nor logs. So credentials given here travel
inside the class, and options stay free of them. Over Spark Connect that is how to give them: a request's options are text
there, which the Connect server writes to its log whenever one of its listeners is slow. A secret in them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from tablecast.errors import InvalidRequest
from tablecast.spark.source import TablecastDataSource

_SECRETS = ("password", "token")
_CREDENTIALS = ("user", "passwordfile", *_SECRETS)
_CONNECT = "pyspark.sql.connect"


def register(
    spark: SparkSession, *, user: str | None = None, password: str | None = None, token: str | None = None
) -> SparkSession:
    """Makes `format("tablecast")` known to a session, classic or Connect; the same one is returned.

    With a user and a password, or a token, these are for every read and write whose options name no others.
    """
    own = _credentials(user, password, token)
    spark.dataSource.register(_data_source(own, is_remote=type(spark).__module__.startswith(_CONNECT)))
    return spark


def _credentials(user: str | None, password: str | None, token: str | None) -> dict[str, str]:
    if token is not None and user is None and password is None:
        return {"token": token}
    if token is None and user is not None and password is not None:
        return {"user": user, "password": password}
    if token is None and user is None and password is None:
        return {}
    raise InvalidRequest("give a user with a password, or a token, not both")


def _data_source(own: Mapping[str, str], *, is_remote: bool) -> type[TablecastDataSource]:
    if not own and not is_remote:
        return TablecastDataSource

    class RegisteredDataSource(TablecastDataSource):
        """Pickled with what it closes over, because no module has it."""

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(_completed(options, own, is_remote=is_remote))

    return RegisteredDataSource


def _completed(options: Mapping[str, str], own: Mapping[str, str], *, is_remote: bool) -> dict[str, str]:
    given = {name.lower() for name in options}
    secret = next((name for name in _SECRETS if name in given), None)
    if is_remote and secret is not None:
        raise InvalidRequest(
            f'option "{secret}" over Spark Connect may end up in the log of the Connect server: give it once, as '
            "tablecast.spark.register(spark, user=…, password=…) or token=…, or use passwordFile, a file on that server",
            option=secret,
        )
    return dict(options) if given & set(_CREDENTIALS) else {**options, **own}
