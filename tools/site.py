"""What makes a site of plain Markdown: MkDocs calls these while `make docs` builds it (`hooks` in mkdocs.yml).

The pages are written for whoever reads files: links lead to files, the tour is the README, fences may carry the name of an
example, and a list may follow a line of text. A site needs some of that said otherwise; it is said here, on the way, so that
no page has to know of it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = {"README.md": "tour.md", "CHANGELOG.md": "changelog.md"}  # files above docs/, and the pages they become

_FENCE = re.compile(r"^(```+)(\w*).*$")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_ITEM = re.compile(r"^(\s*)(?:[-*]|\d+\.) ")
_CODE_IN_CELL = re.compile(r"`[^`]*`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in OUTSIDE.items():
        files.append(
            File.generated(config, page, content=_moved_into_docs((ROOT / source).read_text(encoding="utf-8")))
        )
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    return "\n".join(_lines(_LINK.sub(_inside, markdown)))


def _moved_into_docs(markdown: str) -> str:
    """A page of the root, as it reads when it stands in docs/."""
    return _LINK.sub(_from_the_root, markdown)


def _from_the_root(link: re.Match[str]) -> str:
    target = link[1]
    path, hash_sign, anchor = target.partition("#")
    if re.match(r"[a-z]+:", target) or not path:
        return link[0]
    if path.startswith("docs/"):
        return f"]({target.removeprefix('docs/')})"
    return f"](../{path}{hash_sign}{anchor})"


def _inside(link: re.Match[str]) -> str:
    """Where a link out of docs/ leads on the site: to the page that the file became, or nowhere, as text with its path."""
    path, hash_sign, anchor = link[1].partition("#")
    if not path.startswith("../"):
        return link[0]
    name = path.lstrip("./")
    if name in OUTSIDE:
        return f"]({OUTSIDE[name]}{hash_sign}{anchor})"
    return link[0] if (ROOT / "docs" / name).exists() else f"] (`{name}`)"


def _lines(markdown: str) -> list[str]:
    """A blank line before each list, names of examples off the fences, and bars inside of code as a table's cell has them."""
    made: list[str] = []
    fence, before = "", ""
    for line in markdown.splitlines():
        opening = _FENCE.match(line)
        if opening and not fence:
            fence, language = opening[1], opening[2]
            line = f"{fence}{'text' if language in ('', 'hex') else language}"
        elif fence:
            fence = "" if line.strip() == fence else fence
        elif _begins_a_list(line, before):
            made.append("")
        elif line.startswith("|"):
            line = _CODE_IN_CELL.sub(lambda code: code[0].replace("\\|", "|"), line)
        made.append(line)
        before = line
    return made


def _begins_a_list(line: str, before: str) -> bool:
    item = _ITEM.match(line)
    return (
        item is not None and bool(before.strip()) and not before.startswith((" ", "|")) and _ITEM.match(before) is None
    )
