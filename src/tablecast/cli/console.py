"""The two streams: results go to standard output, everything said about them to standard error.

Consoles are made when they are used, so that they follow a stream that was redirected.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from tablecast.errors import TablecastError

# What a value may not do to a terminal: move its cursor, ring its bell, break the table.
_VISIBLE = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


_UNLIMITED = 10_000  # columns, where no terminal sets a limit


def output() -> Console:
    return Console(highlight=False, width=None if sys.stdout.isatty() else _UNLIMITED)


def messages() -> Console:
    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _UNLIMITED)


def visible(text: str) -> str:
    """The text with control characters written out."""
    return text.translate(_VISIBLE)


def say(text: str) -> None:
    messages().print(Text(text, style="dim"))


def print_error(error: TablecastError, where: str = "") -> None:
    line = Text(f"error [{error.code}]: ", style="bold red")
    messages().print(line.append(f"{where}{visible(error.message)}", style="not bold red"))
