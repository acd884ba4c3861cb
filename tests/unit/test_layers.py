"""The layers of the design hold: imports point down only, and each foreign engine lives in the modules named here."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LINT = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"


def linter_settings() -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return settings


def layers() -> list[str]:
    """Every package that a layer names; `a | b` are two in one layer that do not know each other."""
    [found] = [c["layers"] for c in linter_settings()["contracts"] if c["type"] == "layers"]
    return [name for layer in found for name in layer.split(" | ")]


def lint(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", LINT], cwd=root, capture_output=True, text=True, check=False)


def test_every_contract_is_kept() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_stands_in_a_layer() -> None:
    """A package that no contract names would be free to import anything."""
    package = ROOT / "src" / "tablecast"
    found = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert {f"tablecast.{name}" for name in found - {"__init__", "__main__"}} == set(layers())


HOMES = {
    "rocksdict": ["tablecast.storage.rocks", "tablecast.storage.sst"],
    "duckdb": ["tablecast.sql.query"],
    "httptools": ["tablecast.client.exchange"],
    "argon2": ["tablecast.engine.passwords"],
    "jwt": ["tablecast.server.tokens"],
    "prometheus_client": ["tablecast.server.metrics"],
    "websockets": ["tablecast.client.live_socket", "tablecast.server.live_socket"],
    "paho": ["tablecast.edge.link"],
    "cbor2": ["tablecast.codec.events"],
}


def test_foreign_libraries_have_their_modules() -> None:
    contracts = [c for c in linter_settings()["contracts"] if "ignore_imports" in c]
    forbidden = {c["forbidden_modules"][0]: c["ignore_imports"] for c in contracts}
    assert forbidden == {library: [f"{home} -> {library}" for home in homes] for library, homes in HOMES.items()}


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("model/upwards.py", "import tablecast.engine.engine"),
        ("engine/bypass.py", "import rocksdict"),
        ("engine/shortcut.py", "import duckdb"),
        ("spark/inside.py", "import tablecast.engine.engine"),
        ("edge/beside.py", "import tablecast.spark"),
        ("server/direct.py", "import paho"),
    ],
)
def test_a_broken_contract_is_noticed(tmp_path: Path, module: str, line: str) -> None:
    """The same linter with the same settings over a package with one wrong import."""
    package = tmp_path / "tablecast"
    for layer in layers():
        folder = package / layer.removeprefix("tablecast.")
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "engine" / "engine.py").touch()
    for library, home in ((library, home) for library, homes in HOMES.items() for home in homes):
        (package / Path(*home.split(".")[1:]).with_suffix(".py")).write_text(f"import {library}\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    assert lint(tmp_path).returncode == 0, "the package is sound before the wrong import"
    (package / module).write_text(f"{line}\n")
    broken = lint(tmp_path)
    assert broken.returncode == 1
    assert "BROKEN" in broken.stdout


def test_no_two_helpers_of_the_tests_share_a_name() -> None:
    """Their folders are all on the path, so a test that imports one would get whichever was imported first."""
    helpers = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name not in ("conftest.py", "__init__.py")]
    assert sorted(helpers) == sorted(set(helpers))
