"""A result as aligned columns.

On a terminal that is too narrow the widest columns shrink and their text goes on in the next line; elsewhere every
row is one line. Written by hand because rich's table takes a second for a thousand rows.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from rich.cells import cell_len, chop_cells

from tablecast.cli.console import output, visible
from tablecast.cli.values import text_rows
from tablecast.codec.result import Result

MIN_WIDTH = 8
_GAP = " │ "
_NUMBERS = ("SMALLINT", "INT", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"

Cells = list[str | None]


def grid_lines(result: Result) -> Iterator[str]:
    names = [visible(name) for name in result.columns]
    rows: list[Cells] = [[None if t is None else visible(t) for t in row] for row in text_rows(result)]
    widths = _widths(names, rows)
    if sys.stdout.isatty():
        widths = fitted(widths, shutil.get_terminal_size().columns)
    right = [kind is not None and kind.startswith(_NUMBERS) for _, kind in result.schema]
    coloured = output().color_system is not None
    bold = _painter(_BOLD, coloured)
    yield from _lines([*names], widths, [False] * len(names), bold, bold)
    yield "─┼─".join("─" * width for width in widths) + "\n"
    for row in rows:
        yield from _lines(row, widths, right, str, _painter(_DIM, coloured))


def fitted(widths: Sequence[int], available: int) -> list[int]:
    """The widest columns give way until all fit, or all that can shrink are at the least width."""
    left = list(widths)
    while sum(left) + len(_GAP) * (len(left) - 1) > available:
        widest = max(left, default=0)
        if widest <= MIN_WIDTH:
            break
        left[left.index(widest)] -= 1
    return left


def _widths(names: Sequence[str], rows: Sequence[Cells]) -> list[int]:
    widths = [cell_len(name) for name in names]
    for i in range(len(names)):
        widths[i] = max([widths[i], *(4 if row[i] is None else cell_len(row[i] or "") for row in rows)])
    return widths


def _lines(
    cells: Cells, widths: Sequence[int], right: Sequence[bool], paint: Callable[[str], str], null: Callable[[str], str]
) -> Iterator[str]:
    """One row: one line, or as many as its longest folded cell."""
    folded = [
        chop_cells(text, width) if cell_len(text) > width else [text]
        for text, width in zip(("NULL" if c is None else c for c in cells), widths, strict=True)
    ]
    paints = [null if cell is None else paint for cell in cells]
    for parts in zip_longest(*folded, fillvalue=""):
        shown = [
            paint_one(_aligned(part, width, to_right))
            for part, width, to_right, paint_one in zip(parts, widths, right, paints, strict=True)
        ]
        yield _GAP.join(shown).rstrip() + "\n"


def _aligned(text: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _painter(code: str, coloured: bool) -> Callable[[str], str]:
    return (lambda text: f"{code}{text}{_PLAIN}") if coloured else str
