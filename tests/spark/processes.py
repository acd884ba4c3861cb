"""Everything that a test may kill: a server that comes back on its port, Spark drivers, a cluster, a Connect server.

Each is a process of its own, with its output in a file. `kill` is SIGKILL; what a killed driver leaves behind (Python
workers in a process group of their own) ends by itself when it notices, as it would in life.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import pyspark

from tablecast.spark.java import find_java

PASSWORD = "a password for tests of Spark"
HOST = "127.0.0.1"
PORTS = range(20_000, 30_000)  # below those that the system gives to clients: a retry must not take a server's
WAIT_SECONDS = 120.0  # for a condition on a machine under load
POLL_SECONDS = 0.02
HERE = Path(__file__).parent

T = TypeVar("T")


def until(what: str, condition: Callable[[], T | None], seconds: float = WAIT_SECONDS) -> T:
    """What the condition returns once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(POLL_SECONDS)
    return found


def free_port() -> int:
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port


def listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((HOST, port)) == 0


def environment(**further: str) -> dict[str, str]:
    java = find_java()
    return {
        **os.environ,
        "JAVA_HOME": str(java.home),
        "SPARK_LOCAL_IP": HOST,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "TABLECAST_USER": "system",
        "TABLECAST_PASSWORD": PASSWORD,
        **further,
    }


class Run:
    """One program, started again as often as it takes. It leads a session: `kill` takes all that it started."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._command, self.log, self._env = command, log, dict(env or environment())
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, start_new_session=True
            )
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.poll()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()

    def finish(self, seconds: float = WAIT_SECONDS) -> str:
        """Waits for an end without an error, and returns what it said."""
        assert self._process is not None
        code = self._process.wait(timeout=seconds)
        said = self.log.read_text()
        assert code == 0, f"{self._command[:3]} ended with {code}:\n{said[-6000:]}"
        return said

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class Server(Run):
    """`tablecast serve` over one directory and on one port."""

    def __init__(self, directory: Path) -> None:
        self.port, self.data = free_port(), directory / "data"
        self.url = f"http://{HOST}:{self.port}"
        command = [sys.executable, "-m", "tablecast", "serve", "--data", str(self.data), "--port", str(self.port)]
        super().__init__(command, directory / "server.log", environment())

    def start(self) -> Self:
        super().start()
        until("the server listens", lambda: listens(self.port) or not self.running)
        assert self.running, self.log.read_text()[-4000:]
        return self

    def restart(self) -> None:
        self.kill()
        self.start()

    def end(self) -> None:
        """Drained, not killed."""
        assert self._process is not None
        self._process.terminate()
        assert self._process.wait(timeout=WAIT_SECONDS) == 0


class Driver(Run):
    """A script beside this file, as a Spark driver. Its JVM dies with it; so do its Python workers, a moment later."""

    def __init__(self, script: str, *arguments: str, log: Path, **env: str) -> None:
        super().__init__([sys.executable, str(HERE / script), *arguments], log, environment(**env))

    def workers(self) -> list[int]:
        """The Python processes that run tasks: children of a `pyspark.daemon` under this driver. There is a daemon for
        plans and one for commits, too; theirs belong to the driver."""
        return [pid for pid, parent in self._below() if _TASKS in _command(pid) and _TASKS in _command(parent)]

    def _below(self) -> Iterator[tuple[int, int]]:
        """Every process under this one, with its parent."""
        children: dict[int, list[int]] = {}
        for pid, parent in _processes():
            children.setdefault(parent, []).append(pid)
        parents = [self.pid]
        while parents:
            parent = parents.pop()
            for pid in children.get(parent, []):
                yield pid, parent
                parents.append(pid)


_TASKS = "pyspark.daemon pyspark.worker"
_EXECUTOR = "executor.CoarseGrainedExecutorBackend"


def _processes() -> Iterator[tuple[int, int]]:
    """The id of every process, and of its parent."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            yield int(entry.name), int(fields[1])


def _line(pid: int) -> list[int]:
    """The process, its parent, and so on."""
    parents = dict(_processes())
    line = [pid]
    while line[-1] in parents and parents[line[-1]] > 1:
        line.append(parents[line[-1]])
    return line


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


# --- what Spark runs as servers -----------------------------------------------------------------------------------

SPARK_HOME = Path(pyspark.__file__).parent


class Cluster:
    """A standalone cluster on loopback: a master and workers of one core each, from the pip package.

    `hosts` are those of the workers. Spark takes workers of one address for one machine, and one machine does not get a
    second attempt at a task that it is at work on already."""

    def __init__(self, directory: Path, hosts: Sequence[str] = (HOST, HOST)) -> None:
        self._directory, self._port, self._ui = directory, free_port(), free_port()
        self.master = f"spark://{HOST}:{self._port}"
        env = environment(
            SPARK_HOME=str(SPARK_HOME), SPARK_DAEMON_MEMORY="512m", SPARK_DAEMON_JAVA_OPTS="-XX:TieredStopAtLevel=1"
        )
        ports = ("--port", str(self._port), "--webui-port", str(self._ui))
        self._master = self._run("master.Master", env, "--host", HOST, *ports)
        self._workers = [
            self._run(
                "worker.Worker", {**env, "SPARK_LOCAL_IP": host}, "--host", host, "-c", "1", "-m", "1g", "-d",
                str(directory / f"work-{n}"), self.master, name=f"worker-{n}",
            )
            for n, host in enumerate(hosts)
        ]  # fmt: skip

    def _run(self, what: str, env: Mapping[str, str], *arguments: str, name: str = "master") -> Run:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{what}"]
        return Run([*command, *arguments], self._directory / f"{name}.log", env)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        self._master.start()
        until("the master listens", lambda: self._running(self._master) and listens(self._port))
        for worker in self._workers:
            worker.start()
        said = self._master.log
        until("the workers are registered", lambda: said.read_text().count("Registering worker") == len(self._workers))

    def _running(self, run: Run) -> bool:
        assert run.running, run.log.read_text()[-4000:]
        return True

    def __exit__(self, *_: object) -> None:
        for run in (*self._workers, self._master):
            run.kill()

    def executors(self) -> list[int]:
        """The processes that run tasks' JVMs."""
        return [pid for pid, _ in _processes() if _EXECUTOR in _command(pid) and self._worker_above(pid) is not None]

    def _worker_above(self, pid: int) -> Run | None:
        line = _line(pid)
        return next((worker for worker in self._workers if worker.running and worker.pid in line), None)

    def kill_worker_of(self, pid: int) -> None:
        """As if the machine was gone: the worker under which this process runs, its executor, and the process."""
        line, worker = _line(pid), self._worker_above(pid)
        assert worker is not None, f"process {pid} runs under no worker"
        for each in line[: line.index(worker.pid)]:
            os.kill(each, signal.SIGKILL)
        worker.kill()


class ConnectServer(Run):
    """Spark behind Spark Connect, on local[2], in an environment `without` some variables."""

    def __init__(self, directory: Path, *, without: Sequence[str] = (), **further: str) -> None:
        self.port = free_port()
        self.remote = f"sc://{HOST}:{self.port}"
        conf = {
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.ui.enabled": "false",
            "spark.sql.session.timeZone": "UTC",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            **further,
        }
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        command += [word for item in conf.items() for word in ("--conf", "=".join(item))]
        known = environment(SPARK_HOME=str(SPARK_HOME))
        told = {name: value for name, value in known.items() if name not in without}
        super().__init__([*command, "spark-internal"], directory / "connect.log", told)

    def start(self) -> Self:
        super().start()
        until("the Connect server listens", lambda: listens(self.port) or not self.running)
        assert self.running, self.log.read_text()[-4000:]
        return self
