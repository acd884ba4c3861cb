"""One version: pyproject.toml says it, everything else repeats it."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import yaml

import tablecast

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_it_is_a_semantic_version() -> None:
    assert re.fullmatch(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?", VERSION)


def test_the_package_has_it() -> None:
    assert tablecast.__version__ == VERSION, "the environment was made of an older version: make"
    assert "__version__" in dir(tablecast)


def test_the_changelog_begins_with_it() -> None:
    versions = re.findall(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert versions[0] == VERSION
    assert len(set(versions)) == len(versions)


def test_the_other_clients_and_the_protocol_have_it() -> None:
    assert json.loads((ROOT / "clients" / "js" / "package.json").read_text())["version"] == VERSION
    assert yaml.safe_load((ROOT / "docs" / "live.asyncapi.yaml").read_text())["info"]["version"] == VERSION
