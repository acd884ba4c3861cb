"""What is in deploy/ names programs, flags, settings and paths that there are, and confines a server that still serves."""

from __future__ import annotations

import ctypes.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.exceptions import TyperException

import tablecast
from tablecast.cli.app import app
from tablecast.server.configuration import OTHER_VARIABLES, PREFIX, SETTINGS
from tablecast.server.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "tablecast.service"
CONTAINERFILE = DEPLOY / "Containerfile"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
MAX_EXPOSURE = 20  # tenths, as systemd-analyze counts: what is left is the network, which a server is for
PASSWORD = "a long password"

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")


def unit() -> ConfigParser:
    parsed = ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(UNIT)
    return parsed


def instructions() -> list[tuple[str, str]]:
    """Of the Containerfile: (instruction, the rest), continued lines joined."""
    lines = [line for line in CONTAINERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.partition(" ")[2]) for line in joined.splitlines() if line.strip()]


def last(name: str) -> str:
    return [rest for instruction, rest in instructions() if instruction == name][-1]


def check_command(words: list[str]) -> None:
    """That a command line of ours, without the program, is understood."""
    command = typer.main.get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    command.make_context(words[0], words[1:])


def test_a_wrong_command_is_noticed() -> None:
    for wrong in (["serve", "--nope"], ["serve", "--data"], ["verify"]):
        with pytest.raises(TyperException):
            check_command(wrong)


def commands_of(text: str) -> Iterator[list[str]]:
    """Those that comments and instructions show."""
    for line in text.splitlines():
        if found := re.search(r"(?:^|/)tablecast ((?:serve|verify|backup) [^>&|]*)", line.strip("# ")):
            yield shlex.split(found[1])


# --- systemd ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit with a program that is on this machine."""
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/tablecast/bin/tablecast serve", f"{sys.executable} serve"))
    return copy


@needs_systemd
def test_systemd_takes_the_unit_without_a_word(installed: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", str(installed)], capture_output=True, text=True)
    said = [line for line in (done.stdout + done.stderr).splitlines() if UNIT.name in line]
    assert said == []


@needs_systemd
def test_the_unit_leaves_little_open(installed: Path) -> None:
    command = ["systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(installed)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_units_commands_are_understood() -> None:
    program, *words = shlex.split(unit()["Service"]["ExecStart"])
    assert program == "/opt/tablecast/bin/tablecast"
    check_command(words)
    shown = list(commands_of(UNIT.read_text()))
    assert len(shown) >= 2
    for command in shown:
        check_command(command)


def test_the_unit_writes_where_it_may() -> None:
    service = unit()["Service"]
    words = shlex.split(service["ExecStart"])
    data = Path(words[words.index("--data") + 1])
    assert data.is_relative_to(Path("/var/lib", service["StateDirectory"]))
    assert service["ProtectSystem"] == "strict"


def allowed_calls() -> list[str]:
    """What the unit's SystemCallFilter lines leave."""
    lines = re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE)
    allowed: set[str] = set()
    for line in lines:
        named = {call for group in line.removeprefix("~").split() for call in calls_of(group)}
        allowed = allowed - named if line.startswith("~") else allowed | named
    return sorted(allowed)


def calls_of(group: str) -> set[str]:
    if not group.startswith("@"):
        return {group}
    said = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True
    ).stdout
    members = [line.strip() for line in said.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return set().union(*(calls_of(member) for member in members))


@needs_systemd
@pytest.mark.skipif(ctypes.util.find_library("seccomp") is None, reason="libseccomp is not here")
def test_a_server_does_its_work_under_the_units_filter_of_system_calls(tmp_path: Path) -> None:
    calls = allowed_calls()
    assert "epoll_wait" in calls and "fdatasync" in calls
    assert "setpriority" not in calls and "mount" not in calls
    confined = [sys.executable, str(Path(__file__).with_name("confined.py")), ",".join(calls)]
    command = [*confined, sys.executable, "-m", "tablecast", "serve", "--data", str(tmp_path / "db"), "--port", "0"]
    variables = {**os.environ, "TABLECAST_PASSWORD": PASSWORD}
    server = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = next(line for line in server.stdout if "listening on" in line).split()[-1]
        with tablecast.connect(address, user="system", password=PASSWORD) as client:
            client.execute_all("CREATE TABLE t (id INT PRIMARY KEY); CREATE TOPIC e; ALTER TOPIC e ADD SOURCE t ON ANY")
            with client.live_table("SELECT id FROM t") as live:
                live.ready()
                client.insert("t", [{"id": number} for number in range(1000)])
                live.changed()
                assert len(live.rows) == 1000
            assert len(client.consume("e", group="g", limit=1000).messages) == 1000
            assert client.query("SELECT sum(a.id) FROM t a JOIN t b ON a.id = b.id").scalar() == 499_500
    finally:
        server.terminate()
        _, errors = server.communicate(timeout=60)
    assert server.returncode == 0, errors


# --- the container ------------------------------------------------------------------------------------------------------


def test_the_container_runs_a_command_that_there_is() -> None:
    assert yaml.safe_load(last("ENTRYPOINT")) == ["tablecast"]
    check_command(yaml.safe_load(last("CMD")))


def test_the_container_is_not_root_and_keeps_its_data_in_the_volume() -> None:
    user, words = last("USER"), yaml.safe_load(last("CMD"))
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    assert f"--uid {user.partition(':')[0]}" in CONTAINERFILE.read_text()
    data = Path(words[words.index("--data") + 1])
    assert data.parent == Path(last("VOLUME")), "below it: a new volume may hold files of its file system"


def test_the_container_copies_what_there_is_and_installs_extras_that_there_are() -> None:
    copied = [
        word for name, rest in instructions() if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    ]
    assert {"pyproject.toml", "requirements.lock", "src"} <= set(copied)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert sorted(word.removeprefix("!") for word in ignored if word.startswith("!")) == sorted(copied)
    extras = re.search(r"'\.\[([\w,]+)\]'", CONTAINERFILE.read_text())
    assert extras is not None
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras[1].split(",")) <= known.keys()


def test_the_container_has_the_versions_of_the_lock_file() -> None:
    """Its own command, as the shell of a build runs it."""
    found = re.search(r"(sed -n '[^']+' requirements\.lock) > (\S+)", last_run())
    assert found is not None
    command, target = found.groups()
    versions = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    locked = re.findall(r"^([a-z0-9][\w.-]*==[^ \\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert [line.split()[0] for line in versions.splitlines()] == locked
    assert "\\" not in versions and "--hash" not in versions
    assert f"--constraint {target} '." in last_run()


def last_run() -> str:
    """Of the stage that installs."""
    return [rest for instruction, rest in instructions() if instruction == "RUN" and "requirements.lock" in rest][-1]


def test_the_health_check_asks_what_is_served(tmp_path: Path) -> None:
    """Its own program, against a server: it says yes, and no when nobody is there."""
    port = Settings().port
    assert last("EXPOSE") == str(port)
    check = yaml.safe_load(last("HEALTHCHECK").partition("CMD ")[2])
    command = [sys.executable, "-m", "tablecast", "serve", "--data", str(tmp_path / "db"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(line for line in server.stdout if "listening on" in line).split()[-1]
            program = check[2].replace(f"http://127.0.0.1:{port}", address)
            assert program != check[2]
            assert subprocess.run([sys.executable, "-c", program]).returncode == 0
        finally:
            server.terminate()
    assert subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode == 1


def test_compose_says_what_the_container_takes() -> None:
    [service] = COMPOSE["services"].values()
    assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
    assert ROOT / service["build"]["dockerfile"] == CONTAINERFILE
    assert service["ports"] == [f"127.0.0.1:{last('EXPOSE')}:{last('EXPOSE')}"]
    [volume] = service["volumes"]
    assert volume.partition(":")[0] in COMPOSE["volumes"]
    assert volume.partition(":")[2] == last("VOLUME")
    assert service["ulimits"]["nofile"] > Settings().max_connections
    assert int(service["stop_grace_period"].removesuffix("s")) > Settings().drain_seconds


def test_variables_in_deploy_are_settings() -> None:
    known = {PREFIX + each.dotted.replace(".", "_").upper() for each in SETTINGS.values()}
    known |= {PREFIX + name for name in OTHER_VARIABLES}
    for file in (UNIT, CONTAINERFILE, DEPLOY / "compose.yaml"):
        named = set(re.findall(rf"\b{PREFIX}[A-Z_]+\b", file.read_text()))
        assert named
        assert named <= known
