"""Finding a Java that Spark can run on.

Spark wants 17 or newer, with the module `jdk.incubator.vector`, which its launcher adds by default and which runtimes
stripped for size lack. Looked at in this order, and the first that serves is taken: JAVA_HOME, `java` on the PATH, then
where packages and version managers put it (the newest first). What a Java is, its file `release` tells; where there is
none, `java -version` and `--list-modules` are asked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tablecast.errors import JavaMissing

OLDEST = 17
NEEDED_MODULE = "jdk.incubator.vector"
MAX_ANSWER_SECONDS = 20  # for `java -version`, which takes a fraction of one; a hanging one is no Java
_USUAL = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/usr/local/java*",
    "/usr/local/openjdk*",
    "/usr/local/lib/jvm/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
_INSTALL = (
    "install one, on Debian and Ubuntu with `apt-get install openjdk-17-jre-headless` or `default-jre-headless`, "
    "or set JAVA_HOME to one that is there"
)


class Java(NamedTuple):
    home: Path
    version: int
    has_vector: bool

    @property
    def serves(self) -> bool:
        return self.version >= OLDEST and self.has_vector

    @property
    def lacks(self) -> str:
        if self.version < OLDEST:
            return f"{self.home} is Java {self.version}"
        return f"{self.home} lacks the module {NEEDED_MODULE}"


def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Raises JavaMissing, which says what was found and what to install."""
    seen: list[Java] = []
    for home in _candidates(environment):
        java = examine(home)
        if java is not None and java.serves:
            return java
        if java is not None:
            seen.append(java)
    found = "; ".join(java.lacks for java in seen) or "none was found"
    raise JavaMissing(f"Spark needs Java {OLDEST} or newer ({found}): {_INSTALL}", found=[str(j.home) for j in seen])


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    """Homes to look at, each once."""
    seen: set[Path] = set()
    for home in _places(environment):
        real = home.resolve()
        if real not in seen and (real / "bin" / "java").exists():
            seen.add(real)
            yield real


def _places(environment: Mapping[str, str]) -> Iterator[Path]:
    if given := environment.get("JAVA_HOME"):
        yield Path(given)
    if on_path := shutil.which("java", path=environment.get("PATH")):
        yield Path(on_path).resolve().parent.parent
    if sys.platform == "darwin":
        yield from _of_macos()
    usual = [Path(home) for pattern in _USUAL for home in _glob(pattern, environment)]
    yield from sorted(usual, key=lambda home: (_release_version(home) or 0, str(home)), reverse=True)


def _glob(pattern: str, environment: Mapping[str, str]) -> Iterator[Path]:
    if pattern.startswith("~"):
        pattern = environment.get("HOME", "/nonexistent") + pattern[1:]
    root = Path("/")
    yield from (path for path in root.glob(pattern.lstrip("/")) if path.is_dir())


def _of_macos() -> Iterator[Path]:
    said = _ask(["/usr/libexec/java_home", "-v", f"{OLDEST}+"])
    if said.strip():
        yield Path(said.strip().splitlines()[0])


# --- what a Java is -------------------------------------------------------------------------------------------------


def examine(home: Path) -> Java | None:
    """None if it is none, or does not say which."""
    version = _release_version(home) or _asked_version(home)
    return None if version is None else Java(home, version, _has_vector(home))


def _release(home: Path) -> dict[str, str]:
    """The lines NAME="value" of the file `release`."""
    try:
        text = (home / "release").read_text()
    except (OSError, UnicodeDecodeError):
        return {}
    return dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))


def _release_version(home: Path) -> int | None:
    return _major(_release(home).get("JAVA_VERSION", ""))


def _asked_version(home: Path) -> int | None:
    said = re.search(r'version "([^"]+)"', _ask([str(home / "bin" / "java"), "-version"]))
    return None if said is None else _major(said.group(1))


def _major(text: str) -> int | None:
    """17 of "17.0.9", and 8 of "1.8.0_392"."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?", text)
    if numbers is None:
        return None
    return int(numbers.group(2)) if numbers.group(1) == "1" and numbers.group(2) else int(numbers.group(1))


def _has_vector(home: Path) -> bool:
    modules = _release(home).get("MODULES")
    if modules is not None:
        return NEEDED_MODULE in modules.split()
    return NEEDED_MODULE in _ask([str(home / "bin" / "java"), "--list-modules"])


def _ask(command: list[str]) -> str:
    """What it prints, on either stream; nothing if it cannot be run."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=MAX_ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout + run.stderr
