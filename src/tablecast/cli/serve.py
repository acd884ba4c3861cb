"""`tablecast serve`: settings from file, environment and flags, then the server until a signal ends it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tablecast.errors import InvalidRequest
from tablecast.server.configuration import PREFIX, Configuration, load

PASSWORD = PREFIX + "PASSWORD"
CONFIG = PREFIX + "CONFIG"


def configure(file: str | None, flags: Mapping[str, Any], settings: Sequence[str]) -> Configuration:
    """`flags` that are None were not given; `settings` are NAME=VALUE of --set."""
    file = file or os.environ.get(CONFIG)
    given = {name: value for name, value in flags.items() if value is not None}
    return load(Path(file) if file else None, os.environ, given, _assignments(settings))


def _assignments(settings: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidRequest(f"--set {text} has no value: write --set NAME=VALUE, as --set drain_seconds=10")
        found[name.strip().replace("-", "_")] = value.strip()
    return found


def run(configuration: Configuration) -> None:
    require_server()
    from tablecast.server.serve import serve  # only now: --print-config needs no server

    password = os.environ.get(PASSWORD) or None
    serve(configuration.settings, password=password, say=say, warnings=configuration.warnings)


def require_server() -> None:
    try:
        import tablecast.server.serve  # noqa: F401
    except ModuleNotFoundError as error:
        message = f"the server needs packages that are not installed ({error.name}): pip install 'tablecast[server]'"
        raise InvalidRequest(message, package=error.name) from error


def say(text: str) -> None:
    """At once: whoever started the server waits for the line."""
    print(text, flush=True)
