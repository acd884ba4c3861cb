"""Making `format("tablecast")` known to a session, with credentials that no option carries.

Spark keeps the data source's class as pickled bytes, which are in no plan, event or line of the UI. So credentials given here
travel inside the class, and options stay free of them. Over Spark Connect that is how to give them (see `connect`). One line
of a Connect server's log has these bytes: when the client died while it registered. For nobody to read them there by chance,
they are encoded; that is no encryption.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import msgspec
from pyspark.sql import SparkSession

from tablecast.errors import InvalidRequest
from tablecast.spark.connect import SECRETS, refuse_secrets
from tablecast.spark.source import TablecastDataSource

_CREDENTIALS = ("user", "passwordfile", *SECRETS)
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
    encoded = base64.b64encode(msgspec.json.encode(own))

    class RegisteredDataSource(TablecastDataSource):
        """Pickled with what it closes over, because no module has it."""

        def __init__(self, options: dict[str, str]) -> None:
            if is_remote:
                refuse_secrets(options)
            super().__init__(options)
            if not {name.lower() for name in options} & set(_CREDENTIALS):
                self.options = {**options, **msgspec.json.decode(base64.b64decode(encoded))}

    return RegisteredDataSource
