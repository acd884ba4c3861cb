"""Options and arguments that several commands take. Imports nothing but typer, as help texts should not wait."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from tablecast.cli.target import Target


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    NDJSON = "ndjson"


class MessageFormat(StrEnum):
    TEXT = "text"
    NDJSON = "ndjson"


class RoleName(StrEnum):
    USER = "user"
    SERVICE = "service"
    DBA = "dba"
    SYSTEM = "system"


Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")]
Interval = Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks with --watch.")]

_PANEL = "Signing in at a server"
_ARGUMENT = "The directory of a database, or the address of a server."
_USER = "Who signs in (or TABLECAST_USER; default: system)."
_PASSWORD_FILE = "A file with the password (or TABLECAST_PASSWORD; else it is asked for)."
_TOKEN = "An access token instead (better: TABLECAST_TOKEN, which others cannot read)."
_CA = "The authority that signed the server's certificate, PEM."


def on_target(command: Callable[..., None]) -> Callable[..., None]:
    """Makes a command's first parameter, a Target, of an argument and of the options that go with servers."""

    @functools.wraps(command)
    def on(
        place: str, user: str | None, password_file: Path | None, token: str | None, ca: Path | None, **rest: Any
    ) -> None:
        command(Target(place, user, password_file, token, ca), **rest)

    asked = {
        "place": Annotated[str, typer.Argument(metavar="PATH|URL", help=_ARGUMENT, show_default=False)],
        "user": _signing_in(str, "--user", "NAME", _USER),
        "password_file": _signing_in(Path, "--password-file", "FILE", _PASSWORD_FILE),
        "token": _signing_in(str, "--token", "TOKEN", _TOKEN),
        "ca": _signing_in(Path, "--ca", "FILE", _CA),
    }
    _, *own = inspect.signature(command).parameters.values()
    hints = get_type_hints(command, include_extras=True)
    place, *options = [_parameter(name, kind) for name, kind in asked.items()]
    own = [parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY) for parameter in own]
    parameters = [place, *own, *options]
    on.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    on.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return on


def _signing_in(kind: type, option: str, metavar: str, meaning: str) -> Any:
    declared = typer.Option(option, metavar=metavar, help=meaning, show_default=False, rich_help_panel=_PANEL)
    return Annotated[kind | None, declared]


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    default = inspect.Parameter.empty if name == "place" else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
