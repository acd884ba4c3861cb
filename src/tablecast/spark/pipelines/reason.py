"""Why a query failed, in one line: Spark's own text holds two stack traces around it."""

from __future__ import annotations

import re

from tablecast.errors import TablecastError

MAX_REASON_CHARS = 1_000  # of an error in a log line or in system.pipelines: the whole of it is logged at debug
_RAISED = re.compile(r"^\s*(?:[\w$]+\.)*([A-Z]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_OURS = re.compile(r"^tablecast\.(?:\w+\.)*(\w+): (.+)$", re.MULTILINE)
_NOISE = ("StreamingQueryException", "Py4JException", "PythonException", "SparkException", "AnalysisException")


def cause(error: BaseException) -> str | None:
    """The class of ours that it comes down to, whatever of Spark's is around it."""
    if isinstance(error, TablecastError):
        return type(error).__name__
    ours = _OURS.findall(str(error))
    return str(ours[-1][0]) if ours else None


def reason(error: BaseException) -> str:
    if isinstance(error, TablecastError):
        return _cut(f"{error.code}: {error.message}")
    text = str(error)
    ours = _OURS.findall(text)
    if ours:
        return _cut(f"{ours[-1][0]}: {ours[-1][1]}")
    raised = [found for found in _RAISED.findall(text) if found[0] not in _NOISE]
    if raised:
        return _cut(f"{raised[-1][0]}: {raised[-1][1]}")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _cut(f"{type(error).__name__}: {lines[0] if lines else 'without a message'}")


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 1] + "…"
