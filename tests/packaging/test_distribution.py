"""What is built: a wheel with the package and nothing else, and the same bytes whenever and wherever it is built."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "src")
BUILD = "import sys; from flit_core.buildapi import *; build_wheel(sys.argv[1]); build_sdist(sys.argv[1])"
WHEEL, SDIST = f"tablecast-{VERSION}-py3-none-any.whl", f"tablecast-{VERSION}.tar.gz"
INFO = f"tablecast-{VERSION}.dist-info/"
BUNDLE = "tablecast/server/console_bundle/"
EPOCH = "1767225600"


def build(source: Path, target: Path, **environment: str) -> Path:
    """By the build backend itself, which needs no network."""
    target.mkdir()
    subprocess.run(
        [sys.executable, "-c", BUILD, str(target)], cwd=source, check=True, env={**os.environ, **environment}
    )
    return target


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("built") / "dist", SOURCE_DATE_EPOCH=EPOCH)


@pytest.fixture(scope="module")
def names(built: Path) -> set[str]:
    with zipfile.ZipFile(built / WHEEL) as wheel:
        assert wheel.testzip() is None
        return set(wheel.namelist())


@pytest.fixture(scope="module")
def metadata(built: Path) -> Message:
    with zipfile.ZipFile(built / WHEEL) as wheel:
        return HeaderParser().parsestr(wheel.read(INFO + "METADATA").decode())


# --- what is in it ----------------------------------------------------------------------------------------------------


def test_the_wheel_has_every_module_and_nothing_that_is_not_of_the_package(names: set[str]) -> None:
    package = ROOT / "src" / "tablecast"
    modules = {str(file.relative_to(package.parent)) for file in package.rglob("*.py")}
    described = {INFO + name for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert len(modules) > 100
    assert {name for name in names if not name.startswith(BUNDLE)} == modules | described | {"tablecast/py.typed"}


def test_the_console_is_in_it(built: Path, names: set[str]) -> None:
    with zipfile.ZipFile(built / WHEEL) as wheel:
        page = wheel.read(BUNDLE + "index.html").decode()
    asked = set(re.findall(r"assets/[\w.-]+", page))
    assert asked
    assert {BUNDLE + name for name in asked} <= names


def test_the_sdist_has_what_the_wheel_is_built_from_and_no_tests(built: Path) -> None:
    with tarfile.open(built / SDIST) as sdist:
        found = {member.name.partition("/")[2] for member in sdist.getmembers()}
    roots = {name.partition("/")[0] for name in found}
    assert roots == {*SOURCES, "PKG-INFO"}


def test_a_wheel_of_the_sdist_is_the_wheel(built: Path, tmp_path: Path) -> None:
    with tarfile.open(built / SDIST) as sdist:
        sdist.extractall(tmp_path, filter="data")
    again = build(tmp_path / f"tablecast-{VERSION}", tmp_path / "dist", SOURCE_DATE_EPOCH=EPOCH)
    assert (again / WHEEL).read_bytes() == (built / WHEEL).read_bytes()


def test_what_it_says_of_itself(metadata: Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("tablecast", VERSION)
    assert metadata["Requires-Python"] == PROJECT["requires-python"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "all" in metadata.get_all("Provides-Extra", [])


def test_all_is_what_it_takes_to_serve_replicate_and_run_on_spark() -> None:
    extras = PROJECT["optional-dependencies"]
    assert extras["all"] == ["tablecast[mqtt,server,spark]"]
    assert {"mqtt", "server", "spark"} <= extras.keys()


def test_the_program_is_in_it(built: Path) -> None:
    with zipfile.ZipFile(built / WHEEL) as wheel:
        assert "tablecast=tablecast.cli:main" in wheel.read(INFO + "entry_points.txt").decode().replace(" ", "")


# --- the same bytes -----------------------------------------------------------------------------------------------------


def test_two_builds_of_the_same_sources_are_the_same_bytes(built: Path, tmp_path: Path) -> None:
    """Copied to another place, at another time, by somebody with other rights and another hash seed."""
    copy = tmp_path / "copy"
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, copy / name, ignore=ignored, copy_function=shutil.copyfile)
        else:
            copy.mkdir(exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    for file in copy.rglob("*.py"):
        file.chmod(0o640)
    again = build(copy, tmp_path / "dist", SOURCE_DATE_EPOCH=EPOCH, PYTHONHASHSEED="7", TZ="Asia/Tokyo")
    assert (again / WHEEL).read_bytes() == (built / WHEEL).read_bytes()
    assert (again / SDIST).read_bytes() == (built / SDIST).read_bytes()


def test_another_time_is_another_file(built: Path, tmp_path: Path) -> None:
    """The comparison above can fail: the time is in the bytes."""
    other = build(ROOT, tmp_path / "dist", SOURCE_DATE_EPOCH=str(int(EPOCH) + 86_400))
    assert (other / WHEEL).read_bytes() != (built / WHEEL).read_bytes()
    assert (other / SDIST).read_bytes() != (built / SDIST).read_bytes()
