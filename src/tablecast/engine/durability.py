"""When a commit is on disk.

    fsync          (default) before it is acknowledged. Nothing acknowledged is lost, whatever fails.
    interval(ms)   at most `ms` later. A power cut or kernel crash may lose what was acknowledged in that time.
    none           when the operating system likes, and at close. A power cut may lose everything since then.

The kill of the process alone loses nothing acknowledged in any of them: the kernel has the bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tablecast.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Durability:
    on_commit: bool = True
    interval_ms: int | None = None

    @staticmethod
    def parse(text: str) -> Durability:
        if text == "fsync":
            return Durability()
        if text == "none":
            return Durability(on_commit=False)
        found = re.fullmatch(r"interval\((\d{1,6})\)", text.replace(" ", ""))
        if found and int(found[1]) > 0:
            return Durability(on_commit=False, interval_ms=int(found[1]))
        raise InvalidRequest(f"durability {text!r} is unknown: use 'fsync', 'interval(ms)' or 'none'", durability=text)

    @property
    def name(self) -> str:
        """Says what can be lost."""
        if self.on_commit:
            return "fsync"
        if self.interval_ms is not None:
            return f"interval({self.interval_ms}): a power cut may lose the last {self.interval_ms} ms"
        return "none: a power cut may lose everything not yet synced"
