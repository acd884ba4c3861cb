"""What a run was measured on: processor, memory, kernel, the file system below the data, and what an fsync takes there. And what was
measured: the commit."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent.parent
SYNCS = 200  # enough for a median; takes a fraction of a second on a disk that is good for a database
SYNC_BYTES = 4096


def commit(sources: Path = SOURCES) -> str | None:
    """What was measured; None outside of a checkout."""
    asked = ["git", "-C", str(sources), "rev-parse", "--verify", "--quiet", "HEAD"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        return None
    status = ["git", "-C", str(sources), "status", "--porcelain"]
    changed = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    return found.stdout.strip() + (", changed" if changed else "")


def hardware() -> dict[str, Any]:
    data = Path(tempfile.gettempdir())  # where every benchmark keeps its data
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": f"{platform.system()} {platform.release().partition('-')[0]}",
        "file_system": file_system(data, Path("/proc/self/mounts").read_text()),
        "fsync_us": round(fsync_seconds(data) * 1e6),
        "python": platform.python_version(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def file_system(path: Path, mounts: str) -> str:
    """Of the longest mount point that `path` is below."""
    best, kind = Path("/"), "unknown"
    for line in mounts.splitlines():
        _, place, found, *_ = line.split()
        point = Path(place)
        if path.resolve().is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, found
    return kind


def fsync_seconds(directory: Path) -> float:
    """The median of appending 4 KiB and syncing them, with nobody else writing."""
    took = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(bytes(SYNC_BYTES))
            os.fsync(file.fileno())
            took.append(time.perf_counter() - began)
    return statistics.median(took)
