"""The README's way from nothing to a consumed event, as a new user goes it: its own commands, its own lines."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from pages import ROOT, Block, blocks

[INSTALL_AND_SERVE, PROGRAM] = [block for block in blocks(ROOT / "README.md") if block.mark == "server"]
[OUTPUT] = [block for block in blocks(ROOT / "README.md") if block.mark == "output of the server"]


def lines(block: Block) -> list[str]:
    return block.text.splitlines()


def test_it_is_six_lines() -> None:
    assert len(lines(INSTALL_AND_SERVE)) + len(lines(PROGRAM)) <= 6


def test_from_nothing_to_a_consumed_event(tmp_path: Path) -> None:
    """Only the port is another one: 8080 may be in use here."""
    password, *command = shlex.split(lines(INSTALL_AND_SERVE)[-1])
    name, _, value = password.partition("=")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    server = subprocess.Popen(
        [*command, "--port", "0"], cwd=tmp_path, env={**os.environ, "PATH": path, name: value},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        url = next(line for line in server.stdout if "listening on" in line).split()[-1]
        program = PROGRAM.text.replace("http://127.0.0.1:8080", url)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout, done.stderr) == (OUTPUT.text, "")
    finally:
        server.terminate()
        assert server.wait(60) == 0
        server.stdout.close()
