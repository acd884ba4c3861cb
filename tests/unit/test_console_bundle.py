"""The console that is in the package is the one of the sources: whoever changes them runs `make console`."""

from __future__ import annotations

import gzip
import re
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "src/tablecast/server/console_bundle"
SOURCES = (  # as in console/vite.config.ts
    "console/src",
    "console/index.html",
    "console/package.json",
    "console/package-lock.json",
    "console/tsconfig.json",
    "console/vite.config.ts",
    "clients/js/src",
)
MAX_PACKED_BYTES = 300_000  # of the whole console: a second over a slow line


def digest_of_sources() -> str:
    paths = [found for source in SOURCES for found in (ROOT / source, *(ROOT / source).rglob("*")) if found.is_file()]
    whole = sha256()
    for path in sorted(path.relative_to(ROOT).as_posix() for path in paths):
        whole.update(f"{path}\0{sha256((ROOT / path).read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def test_the_bundle_was_built_from_these_sources() -> None:
    assert (BUNDLE / "BUILT_FROM").read_text().strip() == digest_of_sources(), "run `make console`"


def test_the_page_names_what_is_there_and_nothing_of_others() -> None:
    page = (BUNDLE / "index.html").read_text()
    for name in re.findall(r'(?:src|href)="\./([^"]+)"', page):
        assert (BUNDLE / name).is_file(), name
    assert "http://" not in page and "https://" not in page, "no servers of others"
    assert "<style" not in page and not re.search(r"<script(?![^>]*\bsrc=)", page), "the policy allows nothing inline"


def test_it_is_small() -> None:
    packed = sum(len(gzip.compress(path.read_bytes())) for path in BUNDLE.rglob("*") if path.is_file())
    assert packed < MAX_PACKED_BYTES


def test_the_lock_names_no_registry() -> None:
    assert '"resolved"' not in (ROOT / "console/package-lock.json").read_text()


def test_no_page_styles_what_another_page_names() -> None:
    """Styles of a page stay when one leaves it: a class of one page would change how another looks."""
    owners: dict[str, set[str]] = {}
    for sheet in sorted((ROOT / "console/src/pages").glob("*.css")):
        for name in re.findall(r"^\.([\w-]+)", sheet.read_text(), re.MULTILINE):
            owners.setdefault(name, set()).add(sheet.name)
    assert {name: sheets for name, sheets in owners.items() if len(sheets) > 1} == {}
