"""The console built anew is the one in the package, byte for byte, and its logic holds.

Needs what `make console` installs. Where CI is set it is installed here, from the lock file.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONSOLE = ROOT / "console"
INSTALLED = CONSOLE / "node_modules" / ".package-lock.json"  # npm writes it last
BUNDLE = ROOT / "src/tablecast/server/console_bundle"


@pytest.fixture(scope="module", autouse=True)
def node() -> None:
    if subprocess.run([ROOT / "tools/ensure-node"], capture_output=True).returncode:
        pytest.skip("the console is built with node 20.19 or newer")
    with (CONSOLE / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
        if INSTALLED.exists():
            return
        if "CI" not in os.environ:
            pytest.skip("what the console is built with is not installed: make console")
        npm("ci")


def npm(*words: str, **environment: str) -> None:
    ran = subprocess.run(
        ["npm", "--silent", *words],
        cwd=CONSOLE,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_build_gives_the_same_bytes(tmp_path: Path) -> None:
    npm("run", "build", CONSOLE_OUT=str(tmp_path / "built"))
    built = contents(tmp_path / "built")
    assert sorted(built) == sorted(contents(BUNDLE))
    assert built == contents(BUNDLE)


def test_the_logic_holds() -> None:
    npm("test")


def test_the_types_of_the_client_allow_what_programs_do() -> None:
    """clients/js/test/types.check.ts uses every signature; the compiler is the console's."""
    flags = [
        "--noEmit", "--strict", "--noUncheckedIndexedAccess", "--noUnusedLocals", "--noUnusedParameters",
        "--target", "ES2023", "--module", "NodeNext", "--moduleResolution", "NodeNext", "--lib", "ES2023,DOM",
    ]  # fmt: skip
    check = ROOT / "clients/js/test/types.check.ts"
    compiler = CONSOLE / "node_modules/.bin/tsc"
    ran = subprocess.run([compiler, *flags, check], cwd=check.parent, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
