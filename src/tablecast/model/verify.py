"""What verifying a database found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Progress = Callable[[str, int], None]  # rows or messages, and how many were read


@dataclass(slots=True)
class VerifyReport:
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # what is sound, but should be mended
    tables: int = 0
    rows: int = 0
    topics: int = 0
    messages: int = 0
    groups: int = 0
    folded: int = 0  # topics compared with their tables as a whole
    changes: int = 0  # kept changes, each a row in a commit
    versions: int = 0  # of replicated rows, and tombstones

    @property
    def sound(self) -> bool:
        return not self.problems
