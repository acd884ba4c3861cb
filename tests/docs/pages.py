"""Pages of Markdown as a test sees them: fenced blocks with what stands right before them, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCE = re.compile(r"^```(\w*)(?: [a-z-]+)?\s*$")
_MARK = re.compile(r"^<!-- (.+) -->$")
_HEADING = re.compile(r"^#{1,6} (.+?)\s*$")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`[^`]*`")


@dataclass(frozen=True, slots=True)
class Block:
    """`mark` is the comment on the line before the fence, without its brackets."""

    language: str
    text: str
    line: int
    mark: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    found, inside, language, start, before = [], False, "", 0, ""
    text: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and not inside:
            inside, language, start, text = True, fence[1], number, []
        elif fence:
            mark = _MARK.match(before)
            found.append(Block(language, "\n".join(text) + "\n", start, mark[1] if mark else ""))
            inside, before = False, ""
        elif inside:
            text.append(line)
        elif line.strip():
            before = line.strip()
    return found


def prose(page: Path) -> Iterator[str]:
    """The lines outside of fenced blocks."""
    inside = False
    for line in page.read_text().splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            yield line


def links(page: Path) -> list[str]:
    return [target for line in prose(page) for target in _LINK.findall(_CODE.sub("", line))]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them: lower case, punctuation dropped, spaces to hyphens, repeats numbered."""
    found: set[str] = set()
    for line in prose(page):
        heading = _HEADING.match(line)
        if heading is None:
            continue
        plain = _LINK.sub("", heading[1]) if "](" in heading[1] else heading[1]
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        unique, count = slug, 0
        while unique in found:
            count += 1
            unique = f"{slug}-{count}"
        found.add(unique)
    return found


def table_rows(page: Path) -> Iterator[list[str]]:
    """The cells of every table's rows, its heading included."""
    for line in prose(page):
        if line.startswith("|") and not set(line) <= set("|-: "):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
