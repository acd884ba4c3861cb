"""`python tools/commands_page.py`: writes docs/commands.md, every command and flag of `tablecast` with its help text.

`tablecast … --help` says the same in a terminal. `page()` is the whole text, so that a test can compare it with the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main

from tablecast.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
NAMES = {int: "N", float: "SECONDS"}  # of what takes no name of its own
HEAD = """\
# Every command and flag

What `--help` says of each, on one page. How they are used: [the command line](cli.md), [the server](server.md), [copying](copy.md),
[pipelines](pipelines.md).

*This page is made from the program by `tools/commands_page.py`; a test compares them.*

"""


def page() -> str:
    commands = list(_commands(typer.main.get_command(app), "tablecast"))
    table = [f"| [`{name}`](#{_anchor(name)}) | {_first_line(command)} |" for name, command in commands]
    listed = "\n".join(["| command | |", "|---|---|", *table])
    return HEAD + listed + "\n\n" + "\n".join(line for name, each in commands for line in _section(name, each))


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, f"{path} {name}")
    if not hasattr(command, "commands"):
        yield path, command


def _section(name: str, command: Any) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    yield f"## {name}\n"
    yield f"`{' '.join([name, *map(_placed, arguments), *(['[OPTIONS]'] if options else [])])}`\n"
    yield _text(command.help) + "\n"
    if options:
        yield "| flag | takes | default | |"
        yield "|---|---|---|---|"
        for option in options:
            yield f"| {_flags(option)} | {_takes(option)} | {_default(option)} | {_text(option.help)} |"
        yield ""


def _placed(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required else f"[{name.strip('[]')}]"


def _flags(option: Any) -> str:
    return ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))


def _takes(option: Any) -> str:
    if option.is_flag:
        return ""
    kind = option.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        takes = " or ".join(f"`{choice.value}`" for choice in kind)
    else:
        takes = f"`{option.metavar or NAMES.get(kind, 'TEXT')}`"
    return _text(takes) + (", repeated" if option.multiple else "")


def _default(option: Any) -> str:
    default = getattr(option.default, "value", option.default)
    if default is None or default == [] or (option.is_flag and not default):
        return ""
    return "on" if option.is_flag else f"`{default}`"


def _first_line(command: Any) -> str:
    return _text(str(command.help).split("\n\n")[0])


def _text(text: str | None) -> str:
    return " ".join(str(text or "").split()).replace("|", "\\|")


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
