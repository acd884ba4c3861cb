"""Pictures of the docs: each is used, is told to who cannot see it, and can be read on light and on dark paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import PAGES, ROOT

IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
PICTURES = sorted((ROOT / "docs" / "images").glob("*.svg"))
SHOTS = sorted((ROOT / "docs" / "images").glob("*.png"))  # of the console
PAPER = {"light": "#ffffff", "dark": "#1e2129"}  # behind the pictures, on the site
READABLE = 4.5  # WCAG AA


def test_every_picture_is_used_and_says_what_it_shows() -> None:
    used = {(page.parent / target).resolve(): alt for page in PAGES for alt, target in IMAGE.findall(page.read_text())}
    assert set(used) == {*PICTURES, *SHOTS}
    assert all(len(alt.split()) > 3 for alt in used.values())


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_a_picture_can_be_read_aloud_and_in_the_dark(picture: Path) -> None:
    text = picture.read_text()
    assert re.search(r'role="img" aria-labelledby="title desc"', text)
    assert re.search(r'<title id="title">.+</title>\s*<desc id="desc">.+</desc>', text)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", part)) for part in text.split("@media"))
    assert light.keys() == dark.keys()
    for scheme, colours in (("light", light), ("dark", dark)):
        for ink in ("text", "muted"):
            for paper in (PAPER[scheme], *(colours[name] for name in ("blue", "amber", "green", "grey"))):
                assert contrast(colours[ink], paper) >= READABLE, f"{scheme}: {ink} on {paper}"


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
