"""`pip install tablecast[all]`, from a built wheel into a fresh environment: it serves, is used, and shows its demo.

Needs a package index, and minutes: `make test-wheel`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from test_distribution import EPOCH, ROOT, SDIST, VERSION, WHEEL, build

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

PASSWORD = "a long password"
SMOKE = Path(__file__).with_name("smoke.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make dist` builds it: in an environment of its own."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--outdir", str(target), str(ROOT)]
    subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH})
    return target / WHEEL


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its directory of programs."""
    directory = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(directory, with_pip=True)
    subprocess.run([directory / "bin" / "pip", "install", "--quiet", f"{wheel}[all]"], check=True)
    return directory / "bin"


def called(environment: Path, *args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [str(environment / args[0]), *args[1:]]
    return subprocess.run(command, cwd=cwd, env=clean(), capture_output=True, text=True, stdin=subprocess.DEVNULL)


def clean() -> dict[str, str]:
    """What a new user's shell has: nothing that leads to this checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TABLECAST", "PYTEST"))}


def test_build_gives_what_the_backend_gives(wheel: Path, tmp_path: Path) -> None:
    expected = build(ROOT, tmp_path / "dist", SOURCE_DATE_EPOCH=EPOCH)
    for name in (WHEEL, SDIST):
        assert (wheel.parent / name).read_bytes() == (expected / name).read_bytes()


def test_it_says_its_version(environment: Path, tmp_path: Path) -> None:
    done = called(environment, "tablecast", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"tablecast {VERSION}\n", "")


def test_it_serves_and_is_used(environment: Path, tmp_path: Path) -> None:
    command = [str(environment / "tablecast"), "serve", "--data", "shop", "--port", "0"]
    variables = {**clean(), "TABLECAST_PASSWORD": PASSWORD}
    server = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(line for line in server.stdout if "listening on" in line).split()[-1]
        done = called(environment, "python", str(SMOKE), address, PASSWORD, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    finally:
        server.terminate()
        assert server.wait(60) == 0
        server.stdout.close()
    verified = called(environment, "tablecast", "verify", "shop", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_it_shows_its_demo(environment: Path, tmp_path: Path) -> None:
    done = called(environment, "tablecast", "demo", "--data", "demo", "--seconds", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("100.0%") == (4 if shutil.which("java") else 2)
    assert f"serve --data {tmp_path / 'demo' / 'db'}" in done.stdout
