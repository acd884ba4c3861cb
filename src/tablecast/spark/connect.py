"""What is other behind Spark Connect: a request's options are text there, and Spark writes requests down before any code of
ours runs.

| where | what of the request | when |
|---|---|---|
| event log and UI: a listener event, a job's description and call site | the plan as text, bytes cut short | always |
| the server's log, AsyncEventQueue at INFO | that event | a listener took more than a second |
| the server's log, SparkConnectExecutionManager at INFO | all of it | the client or its session ended in the middle of it |

`spark.redaction.string.regex` of the server covers the first two and not the third.

So a password in an option cannot be kept from Spark. It is refused, for nobody to go on with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from tablecast.errors import SecretInOption

SECRETS = ("password", "token")
_SESSION, _NO_SESSION = "SPARK_JOB_ARTIFACT_UUID", "default"


def is_behind_connect(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this Python process works for a client of Spark Connect: Spark tells it whose session's files it may use, and
    sessions that are not a client's have none of their own."""
    return environment.get(_SESSION, _NO_SESSION) != _NO_SESSION


def refuse_secrets(options: Iterable[str]) -> None:
    """`options` are names, in any case. Raises SecretInOption."""
    given = {name.lower() for name in options}
    secret = next((name for name in SECRETS if name in given), None)
    if secret is not None:
        raise SecretInOption(
            f'option "{secret}" over Spark Connect is in the event log, the UI and perhaps the log of the Connect server by '
            "now: change it, and give it once, as tablecast.spark.register(spark, user=…, password=…) or token=…, or use "
            "passwordFile, a file on that server, or the server's environment",
            option=secret,
        )
