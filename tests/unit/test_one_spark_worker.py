"""That all tests with Spark go to one of pytest's workers, and the others to whoever is free."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

CONFTEST = Path(__file__).parent.parent / "conftest.py"
TESTS = 12  # of each file
FILE = """
import os, pytest

@pytest.mark.parametrize("number", range({tests}))
def test_{name}(number):
    with open({out!r}, "a") as out:
        print(os.environ["PYTEST_XDIST_WORKER"], "{name}", file=out)
"""


def test_what_needs_spark_stays_on_one_worker(tmp_path: Path) -> None:
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "spark").mkdir()
    files = {"test_a.py": "a", "spark/test_b.py": "b", "test_c.py": "c_on_spark", "test_d.py": "d"}
    for path, name in files.items():
        (tmp_path / path).write_text(FILE.format(tests=TESTS, name=name, out=str(tmp_path / "out")))

    done = _pytest(tmp_path, "-n", "2")
    assert done.returncode == 0, done.stdout + done.stderr

    ran: dict[str, Counter[str]] = defaultdict(Counter)
    for line in (tmp_path / "out").read_text().splitlines():
        worker, name = line.split()
        ran[name][worker] += 1
    assert {name: sum(counts.values()) for name, counts in ran.items()} == dict.fromkeys(files.values(), TESTS)
    with_spark = ran["b"] + ran["c_on_spark"]
    assert len(with_spark) == 1
    assert ran["a"].keys() - with_spark.keys(), "the other worker began with the others at once"


def _pytest(directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=directory, env=kept, capture_output=True, text=True, check=False)
