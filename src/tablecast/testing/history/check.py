"""The checker: a history in, a report out.

    events ──> writes ─────────────┐
       │                           ├─> matching ──> coverage ──> tables ──> transactions ──> report
       ├────> topics as observed ──┤                               │
       ├────> tables as observed ──┼───────────────────────────────┴─────> fold(topic) == table
       └────> consumers' events ───┴─> groups

Everything is looked up in dicts; the work is linear in the number of events, up to a sort.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from tablecast.errors import InvalidRequest
from tablecast.testing.history.events import RowKey
from tablecast.testing.history.evidence import Evidence
from tablecast.testing.history.fold import fold
from tablecast.testing.history.groups import check_groups
from tablecast.testing.history.logs import PartitionKey, check_log
from tablecast.testing.history.matching import Asks, Matching
from tablecast.testing.history.observed import TableContent, TopicLog, observed_tables, observed_topics
from tablecast.testing.history.recorder import History
from tablecast.testing.history.report import Findings, Kind, Report, TopicFigures
from tablecast.testing.history.tables import check_table
from tablecast.testing.history.values import same, same_row
from tablecast.testing.history.writes import Outcome, Write, read_writes


class TopicRule(msgspec.Struct, frozen=True):
    """What a test knows of a topic's sources.

    `asks` says for a write whether it must be on the topic. `folds` names the tables that are the fold of the
    topic: all their changes are on it, with full payloads. `partition_by` gives a message's partition key
    when it is not the row's key.
    """

    asks: Callable[[Write], bool]
    folds: tuple[str, ...] = ()
    partition_by: PartitionKey | None = None


def check(history: History, *, routes: Mapping[str, TopicRule | Asks]) -> Report:
    """Holds the history against the promises. `routes` says what should be on each topic that is checked."""
    return _Check(history, routes).run()


class _Check:
    def __init__(self, history: History, routes: Mapping[str, TopicRule | Asks]) -> None:
        self._events = history.events
        self._rules = {t: r if isinstance(r, TopicRule) else TopicRule(r) for t, r in routes.items()}
        self._findings = Findings()
        self._writes = read_writes(self._events, self._findings)
        self._topics = observed_topics(self._events)
        self._tables = observed_tables(self._events)
        self._evidence = Evidence()

    def run(self) -> Report:
        self._require_observations()
        gaps = {t: check_log(self._topics[t], rule.partition_by, self._findings) for t, rule in self._rules.items()}
        matchings = self._match()
        figures = {t: self._cover(self._topics[t], matchings[t], rule, gaps[t]) for t, rule in self._rules.items()}
        for content in self._tables:
            check_table(content, self._writes, self._evidence, self._findings)
        self._check_transactions()
        for topic, rule in self._rules.items():
            self._check_folds(self._topics[topic], rule)
        groups = check_groups(self._events, self._topics, self._findings)
        return Report(self._findings.problems(), self._writes.figures(), figures, groups)

    def _require_observations(self) -> None:
        seen = {content.table for content in self._tables}
        for topic, rule in self._rules.items():
            if topic not in self._topics:
                raise InvalidRequest(f"no complete observation of topic {topic!r}; record one with saw_topic")
            for table in set(rule.folds) - seen:
                raise InvalidRequest(f"no complete observation of table {table!r}; record one with saw_table")

    def _match(self) -> dict[str, Matching]:
        matchings = {
            topic: Matching(self._topics[topic], rule.asks, self._writes, self._findings)
            for topic, rule in self._rules.items()
        }
        clearest_first = sorted(matchings.values(), key=lambda matching: matching.coarse)
        for matching in clearest_first:
            matching.match_certain()
        for matching in clearest_first:
            matching.match_rest()
            self._evidence.there |= {n for n in matching.matched if not self._writes.all[n].doubtful}
        return matchings

    def _cover(self, log: TopicLog, matching: Matching, rule: TopicRule, gaps: int) -> TopicFigures:
        """After all topics are matched: which writes should be on this one, and are not?"""
        expected = covered = 0
        for write in self._writes.all:
            if write.outcome in (Outcome.FAILED, Outcome.NOTHING) or not rule.asks(write):
                continue
            found = write.number in matching.matched
            if not found and (write.doubtful or log.may_have_dropped(write)):
                continue
            expected += write.outcome is Outcome.OK
            covered += found and write.outcome is Outcome.OK
            if not found:
                self._miss(log.topic, write)
        messages = len(log.messages)
        return TopicFigures(log.topic, expected, covered, messages, messages - matching.copies, gaps)

    def _miss(self, topic: str, write: Write) -> None:
        self._evidence.absent.add(write.number)
        if write.outcome is Outcome.OK:
            self._findings.add(Kind.LOST, topic, f"{write} is not on the topic")

    def _check_transactions(self) -> None:
        for there, absent in self._evidence.torn(self._writes):
            where = f"transaction {absent.txn_id!r}"
            what = "is there, but not everywhere" if there is absent else f"is there, but {absent} is not"
            self._findings.add(Kind.TORN, "transactions", f"{where}: {there} {what}")

    def _check_folds(self, log: TopicLog, rule: TopicRule) -> None:
        """A log whose start was retained away says nothing about rows last written before it."""
        contents = [content for content in self._tables if content.table in rule.folds]
        if not contents or not log.whole:
            return
        messages = [message for message in log.messages if message.table in rule.folds]
        if rule.partition_by is not None:  # a row may have moved between partitions: only commits order its changes
            messages.sort(key=lambda message: message.seq)
        newest = {message.row_key: message.seq for message in messages}
        folded = fold(messages)
        for content in contents:
            self._compare(log.topic, content, folded, newest)

    def _compare(
        self,
        topic: str,
        content: TableContent,
        folded: dict[RowKey, dict[str, object]],
        newest: dict[RowKey, int],
    ) -> None:
        told = [row_key for row_key in folded if content.holds(row_key)]
        for row_key in dict.fromkeys([*told, *content.rows]):
            row, said = content.rows.get(row_key), folded.get(row_key)
            if row is None or said is None or not same_row(row, said):
                culprit = f"row {row_key} is {row}, the fold of {topic} has {said}"
            elif not same(row.get("_seq", newest[row_key]), newest[row_key]):
                culprit = f"row {row_key} is of commit {row['_seq']}, its last message of {newest[row_key]}"
            else:
                continue
            self._findings.add(Kind.TORN, content.table, culprit)
