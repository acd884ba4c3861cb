"""Histories: write down what a system was asked and what it answered, then check that it kept its promises.

    recorder = Recorder("writer-1.jsonl")
    recorder.invoke("w1", "app.orders", "insert", [42], {"id": 42, "amount": "9.50"})
    ...                                                   # send the write
    recorder.ok("w1", seq=7)

    history = History.load("writer-1.jsonl", "consumer-1.jsonl", "end.jsonl")
    check(history, routes={"app.order_events": lambda write: write.table == "app.orders"}).raise_if_bad()

The checker knows nothing of the engine: it works on recorded values, wherever they come from.
"""

from tablecast.testing.history.check import TopicRule, check
from tablecast.testing.history.events import RowKey, Seen
from tablecast.testing.history.fold import fold
from tablecast.testing.history.recorder import History, Recorder
from tablecast.testing.history.report import GroupFigures, Kind, Problem, Report, TopicFigures, WriteFigures
from tablecast.testing.history.writes import Outcome, Write

__all__ = [
    "GroupFigures",
    "History",
    "Kind",
    "Outcome",
    "Problem",
    "Recorder",
    "Report",
    "RowKey",
    "Seen",
    "TopicFigures",
    "TopicRule",
    "Write",
    "WriteFigures",
    "check",
    "fold",
]
