"""The console built anew is the one in the package, byte for byte, and its logic holds.

The packages that the build needs are installed from the lock file.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest
from stage import NODE, program, with_node

ROOT = Path(__file__).parents[2]
CONSOLE = ROOT / "console"
INSTALLED = CONSOLE / "node_modules" / ".package-lock.json"  # npm writes it last
NPM = NODE.parent / "lib/node_modules/npm/bin/npm-cli.js"
BUNDLE = ROOT / "src/tablecast/server/console_bundle"


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    with (CONSOLE / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
        if not INSTALLED.exists():
            npm("ci")


def npm(*words: str, **environment: str) -> None:
    ran = subprocess.run(
        [program("node"), NPM, "--silent", *words],
        cwd=CONSOLE,
        env={**os.environ, "PATH": with_node(), **environment},
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
