"""Finding Java: which of several is taken, and what is said when none serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tablecast.errors import JavaMissing
from tablecast.spark import java
from tablecast.spark.java import Java, examine, find_java

MODULES = "java.base jdk.incubator.vector"


def a_java(home: Path, release: str | None, answer: str = "") -> Path:
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    program.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


def release(version: str, modules: str = MODULES) -> str:
    return f'IMPLEMENTOR="X"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n'


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose usual places are a folder of the test's."""
    monkeypatch.setattr(java, "_USUAL", (f"{tmp_path}/usual/*",))
    monkeypatch.setattr(java.sys, "platform", "linux")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("25-ea", 25), ("11.0.2", 11)]
)
def test_versions_of_release_files(tmp_path: Path, text: str, version: int) -> None:
    assert examine(a_java(tmp_path / "j", release(text))) == Java(tmp_path / "j", version, True)


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    answer = 'openjdk version "17.0.2" 2022-01-18\njava.base@17.0.2\njdk.incubator.vector@17.0.2'
    assert examine(a_java(tmp_path / "j", None, answer)) == Java(tmp_path / "j", 17, True)


def test_what_says_nothing_is_no_java(tmp_path: Path) -> None:
    assert examine(a_java(tmp_path / "j", None, "hello")) is None


def test_java_home_comes_first(nowhere: Path) -> None:
    a_java(nowhere / "usual" / "newer", release("25"))
    on_path = a_java(nowhere / "path", release("21"))
    home = a_java(nowhere / "home", release("17.0.1"))
    environment = {"JAVA_HOME": str(home), "PATH": str(on_path / "bin")}
    assert find_java(environment).home == home
    assert find_java({"PATH": str(on_path / "bin")}).home == on_path


def test_an_old_java_home_is_passed_over(nowhere: Path) -> None:
    old = a_java(nowhere / "old", release("1.8.0_1"))
    a_java(nowhere / "usual" / "a", release("17"))
    newest = a_java(nowhere / "usual" / "b", release("21"))
    assert find_java({"JAVA_HOME": str(old), "PATH": ""}) == Java(newest, 21, True)


def test_a_runtime_without_the_vector_module_is_passed_over(nowhere: Path) -> None:
    stripped = a_java(nowhere / "stripped", release("25", "java.base"))
    whole = a_java(nowhere / "usual" / "whole", release("17"))
    assert find_java({"JAVA_HOME": str(stripped), "PATH": ""}).home == whole


def test_what_is_missing_is_said_in_one_line(nowhere: Path) -> None:
    old = a_java(nowhere / "old", release("11.0.2"))
    stripped = a_java(nowhere / "usual" / "stripped", release("21", "java.base"))
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    text = str(caught.value)
    assert caught.value.code == "java_missing"
    assert "\n" not in text
    assert f"{old} is Java 11" in text
    assert f"{stripped} lacks the module jdk.incubator.vector" in text
    assert "openjdk-17-jre-headless" in text
    assert "default-jre-headless" in text


def test_a_machine_without_any(nowhere: Path) -> None:
    with pytest.raises(JavaMissing, match="none was found"):
        find_java({"JAVA_HOME": str(nowhere / "gone"), "PATH": ""})


def test_this_machine_has_one() -> None:
    assert find_java().serves
