"""What the server counts and measures, in the format of Prometheus.

Three sources meet here: the engine tells of commits, fsyncs and jobs as their observer (`engine.observer`); the
application tells of requests; and what is a state rather than an event (queue, lag, sizes) is read when it is asked for.

Each label value is a time series that Prometheus keeps, so whatever users can name is bounded: the topics and groups
beyond the limit share the label `_other`. Every metric is explained in docs/observability.md.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from tablecast import __version__
from tablecast.engine.engine import Engine
from tablecast.engine.live import HubStats
from tablecast.engine.observer import CommitReport
from tablecast.engine.process import MetricSample
from tablecast.engine.system import SYSTEM_TABLES
from tablecast.engine.writer import QUEUE_COMMANDS
from tablecast.errors import UnknownTopic
from tablecast.model.replication import MAX_EPOCH_EVENTS
from tablecast.model.replication_status import ReplicationStatus
from tablecast.model.topic import Topic
from tablecast.server.doorkeeper import DoorStats

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
MAX_TOPIC_LABELS = 1_000  # topics with time series of their own
MAX_GROUP_LABELS = 2_000  # (topic, group) pairs, likewise
OTHER = "_other"  # no topic is called that: its full name has a dot
LAG_KEPT_SECONDS = 1.0  # lag reads every group's state: no scrape makes it cost more than that once a second
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})  # a client may send any other word
LATENCY_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
WORK_BUCKETS = (0.00005, 0.0001, 0.00025, *LATENCY_BUCKETS)  # deciding and writing may take microseconds
REQUEST_BUCKETS = (*LATENCY_BUCKETS, 60.0, 300.0)  # a long poll may take five minutes
COMMAND_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
ROW_BUCKETS = (0, 1, 10, 100, 1_000, 10_000, 100_000)

Place = tuple[str, ...]  # label values, in the order of their labels


class Counter:
    """A number per label values that only grows.

    This and `Histogram` count in plain dictionaries and become the library's families when they are asked for. Its own
    counters look labels and buckets up one by one: measured, twice the time per commit and four times that per request.
    """

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        self._described = name, meaning, labels
        self._lock = threading.Lock()
        self._counts: dict[Place, float] = {} if labels else {(): 0}

    def add(self, count: float, *place: str) -> None:
        with self._lock:
            self._counts[place] = self._counts.get(place, 0) + count

    def family(self) -> Metric:
        name, meaning, labels = self._described
        family = CounterMetricFamily(name, meaning, labels=labels)
        for place, count in self._counts.copy().items():
            family.add_metric(place, count)
        return family


class Histogram:
    """How values are spread, per label values: how many are at most each bound."""

    def __init__(self, name: str, meaning: str, bounds: Sequence[float], *labels: str) -> None:
        self._described = name, meaning, labels
        self._bounds = bounds
        self._lock = threading.Lock()
        self._counts: dict[Place, list[int]] = {} if labels else {(): self._none()}  # of each bound; above all of them
        self._sums: dict[Place, float] = {}

    def add(self, value: float, *place: str) -> None:
        with self._lock:
            counts = self._counts.get(place)
            if counts is None:
                counts = self._counts[place] = self._none()
            counts[bisect_left(self._bounds, value)] += 1
            self._sums[place] = self._sums.get(place, 0.0) + value

    def family(self) -> Metric:
        name, meaning, labels = self._described
        family = HistogramMetricFamily(name, meaning, labels=labels)
        shown = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        with self._lock:
            for place, counts in self._counts.items():
                buckets = list(zip(shown, accumulate(counts), strict=True))
                family.add_metric(place, buckets, self._sums.get(place, 0.0))
        return family

    def _none(self) -> list[int]:
        return [0] * (len(self._bounds) + 1)


class Labels:
    """Label values as they come, up to a limit; `_other` from there on."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name


class Metrics(Collector):
    """One per server. Implements `engine.observer.Observer`, and observes the engine it is made for."""

    def __init__(self, engine: Engine, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._topics = Labels(MAX_TOPIC_LABELS)
        self._state = State(engine, clock)
        self._declared: list[Counter | Histogram] = []
        self._registry = CollectorRegistry()
        self._registry.register(self._state)
        ProcessCollector(registry=self._registry)
        self._declare_engine()
        self._declare_requests()
        self._declare_replication()
        self._registry.register(self)
        engine.observe(self)
        engine.process.metrics = self.samples

    def render(self) -> bytes:
        """Everything, as one scrape."""
        return generate_latest(self._registry)

    def samples(self) -> Iterator[MetricSample]:
        """The same numbers, one by one: `system.metrics`."""
        for metric in self._registry.collect():
            for name, labels, value, *_ in metric.samples:
                yield MetricSample(name, labels, metric.type, value)

    def collect(self) -> Iterator[Metric]:
        """What was counted, for the registry."""
        return (each.family() for each in self._declared)

    # --- told by the engine: see engine.observer ---

    def _declare_engine(self) -> None:
        self._write_latency = self._histogram(
            "tablecast_write_latency_seconds",
            "From the submission of a commit's oldest command to its acknowledgement.",
            LATENCY_BUCKETS,
        )
        self._commands = self._histogram("tablecast_commit_commands", "Commands in a commit.", COMMAND_BUCKETS)
        self._rows = self._histogram("tablecast_commit_rows", "Rows changed by a commit.", ROW_BUCKETS)
        self._decide = self._histogram(
            "tablecast_commit_decide_seconds", "Deciding the commands of a commit.", WORK_BUCKETS
        )
        self._write = self._histogram(
            "tablecast_commit_write_seconds", "Encoding a commit and writing it to the store.", WORK_BUCKETS
        )
        self._fsync = self._histogram("tablecast_fsync_seconds", "Making the write-ahead log durable.", LATENCY_BUCKETS)
        self._messages_in = self._counter("tablecast_messages_in_total", "Messages committed.", "topic")
        self._deduplicated = self._counter(
            "tablecast_messages_deduplicated_total", "Messages skipped by a topic's dedup window."
        )
        self._redelivered = self._counter(
            "tablecast_messages_redelivered_total", "Messages given to a group again.", "topic"
        )
        self._dead = self._counter("tablecast_dead_letters_total", "Messages that went to a dead-letter topic.")
        self._refused = self._counter("tablecast_writes_refused_total", "Writes refused because the queue was full.")
        self._jobs = self._counter("tablecast_jobs_total", "Runs of jobs.", "name", "result")
        self._job_seconds = self._counter("tablecast_job_seconds_total", "Time spent in jobs.", "name")

    def committed(self, report: CommitReport) -> None:
        self._write_latency.add(report.waited_seconds)
        self._commands.add(report.commands)
        self._rows.add(report.rows)
        self._decide.add(report.decide_seconds)
        self._write.add(report.write_seconds)
        for topic, count in report.messages.items():
            self._messages_in.add(count, self._topics.of(topic))
        if report.commit.deduplicated:
            self._deduplicated.add(report.commit.deduplicated)
        if report.commit.letters:
            self._dead.add(report.commit.letters)

    def synced(self, seconds: float) -> None:
        self._fsync.add(seconds)

    def refused(self) -> None:
        self._refused.add(1)

    def redelivered(self, topic: Topic, count: int) -> None:
        self._redelivered.add(count, self._topics.of(topic.full_name))

    def job_ended(self, name: str, result: str, seconds: float) -> None:
        self._jobs.add(1, name, result)
        self._job_seconds.add(seconds, name)

    # --- told by the application ---

    def _declare_requests(self) -> None:
        self._requests = self._counter(
            "tablecast_http_requests_total", "Requests answered.", "method", "route", "status"
        )
        self._request_seconds = self._histogram(
            "tablecast_http_request_seconds",
            "From a request's head to the end of its answer.",
            REQUEST_BUCKETS,
            "method",
            "route",
        )
        self._errors = self._counter("tablecast_errors_total", "Errors answered.", "code")
        self._messages_out = self._counter("tablecast_messages_out_total", "Messages given to readers.", "topic")
        self._lagging = self._counter(
            "tablecast_live_lagging_total", "Live queries whose reader was too slow, and was told to resume."
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """`route` is one of the application's own: a path would be the client's choice."""
        method = method if method in METHODS else OTHER
        self._requests.add(1, method, route, str(status))
        self._request_seconds.add(seconds, method, route)

    def error(self, code: str) -> None:
        self._errors.add(1, code)

    def messages_out(self, topic: str, count: int) -> None:
        """`topic` is a full name."""
        if count:
            self._messages_out.add(count, self._topics.of(self._full_name(topic)))

    def parked(self, count: Callable[[], int]) -> None:
        """Says whom to ask how many consumes wait for messages. Asked at each scrape, from any thread."""
        self._state.parked = count

    def live(self, stats: Callable[[], HubStats], connections: Callable[[], int]) -> None:
        """Says whom to ask about live queries. Asked at each scrape, from any thread."""
        self._state.live = stats, connections

    def door(self, stats: Callable[[], DoorStats]) -> None:
        """Likewise, about newcomers."""
        self._state.door = stats

    def live_lagging(self) -> None:
        self._lagging.add(1)

    def _full_name(self, topic: str) -> str:
        try:
            return self._engine.catalog.topic(topic).full_name
        except UnknownTopic:  # dropped meanwhile, or a name that was completed with the request's namespace
            return OTHER

    # --- told by replication: see edge.status ---

    def _declare_replication(self) -> None:
        self._publish_latency = self._histogram(
            "replication_publish_latency_seconds", "From sending an event to its acknowledgement.", LATENCY_BUCKETS
        )
        self._flush = self._histogram(
            "replication_outbox_flush_duration_seconds", "From the first pending event to none.", REQUEST_BUCKETS
        )

    def events_published(self, seconds: Sequence[float]) -> None:
        for each in seconds:
            self._publish_latency.add(each)

    def outbox_flushed(self, seconds: float) -> None:
        self._flush.add(seconds)

    # --- declaring ---

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        self._declared.append(counter := Counter(name, meaning, *labels))
        return counter

    def _histogram(self, name: str, meaning: str, bounds: Sequence[float], *labels: str) -> Histogram:
        self._declared.append(histogram := Histogram(name, meaning, bounds, *labels))
        return histogram


class State(Collector):
    """What is so when it is asked: read from the engine, not counted along."""

    def __init__(self, engine: Engine, clock: Callable[[], float]) -> None:
        self.parked: Callable[[], int] | None = None
        self.live: tuple[Callable[[], HubStats], Callable[[], int]] | None = None
        self.door: Callable[[], DoorStats] | None = None
        self._engine = engine
        self._clock = clock
        self._turn = threading.Lock()  # scrapes at the same time read the lag once
        self._kept: list[Metric] = []
        self._kept_until = float("-inf")

    def collect(self) -> Iterator[Metric]:
        engine = self._engine
        yield _labelled("tablecast_build_info", "Always 1.", ("version",), {(__version__,): 1})
        yield _gauge("tablecast_write_queue_commands", "Commands waiting to be decided.", engine.queue_depth)
        yield _gauge("tablecast_write_queue_limit_commands", "How many may wait.", QUEUE_COMMANDS)
        yield _gauge("tablecast_writes_stopped", "1 after a storage failure.", engine.writes_stopped)
        yield _gauge("tablecast_commit_number", "The last durable commit.", engine.seq)
        yield _gauge("tablecast_store_bytes", "About how much space the store takes.", engine.store.size_bytes())
        if self.parked is not None:
            yield _gauge("tablecast_long_polls_parked", "Consumes that wait for messages.", self.parked())
        if self.live is not None:
            stats, connections = self.live
            yield from _live(stats(), connections())
        if self.door is not None:
            yield from _door(self.door())
        if engine.replication.carrier is not None:
            yield from _replication(engine.replication.status())
        yield from self._read()

    def _read(self) -> list[Metric]:
        with self._turn:
            if self._clock() >= self._kept_until:
                self._kept = [*_topic_sizes(self._engine), *_group_lags(self._engine), *_pipelines(self._engine)]
                self._kept_until = self._clock() + LAG_KEPT_SECONDS
            return self._kept


def _topic_sizes(engine: Engine) -> list[Metric]:
    messages: dict[Place, int] = {}
    size: dict[Place, int] = {}
    for topic in islice(SYSTEM_TABLES["topics"].dicts(engine), MAX_TOPIC_LABELS):
        place = (f"{topic['namespace']}.{topic['name']}",)
        messages[place], size[place] = topic["messages"], topic["bytes"]
    return [
        _labelled("tablecast_topic_messages", "Messages kept.", ("topic",), messages),
        _labelled("tablecast_topic_bytes", "Bytes of log kept.", ("topic",), size),
    ]


def _group_lags(engine: Engine) -> list[Metric]:
    """Over a group's partitions: messages add up, and the slowest partition is how late the group is."""
    behind: dict[Place, int] = {}
    late: dict[Place, float] = {}
    for state in SYSTEM_TABLES["topic_groups"].dicts(engine):
        place = (state["topic"], state["group_id"])
        if place not in behind and len(behind) >= MAX_GROUP_LABELS:
            place = (OTHER, OTHER)
        behind[place] = behind.get(place, 0) + state["lag"]
        if state["lag_seconds"] is not None:  # unknown if retention took what the group has not read
            late[place] = max(late.get(place, 0.0), state["lag_seconds"])
    return [
        _labelled("tablecast_group_lag_messages", "Messages not done yet.", ("topic", "group"), behind),
        _labelled("tablecast_group_lag_seconds", "Age of the oldest of them.", ("topic", "group"), late),
    ]


def _pipelines(engine: Engine) -> list[Metric]:
    """As their runners reported; there are at most as many as system.pipelines has."""
    rows = list(islice(SYSTEM_TABLES["pipelines"].dicts(engine), MAX_TOPIC_LABELS))
    fields = {
        "tablecast_pipeline_lag_messages": ("Messages it has not read yet.", "lag"),
        "tablecast_pipeline_rows_in": ("Messages read since it was started.", "rows_in"),
        "tablecast_pipeline_rows_out": ("Rows written since it was started.", "rows_out"),
        "tablecast_pipeline_rejected_rows": ("Dead letters since it was started.", "rejected"),
        "tablecast_pipeline_skipped_messages": ("Messages that were gone before it read them.", "skipped"),
        "tablecast_pipeline_input_rows_per_second": (
            "Messages that arrived, of its last batch.",
            "input_rows_per_second",
        ),
        "tablecast_pipeline_processed_rows_per_second": (
            "Messages that it worked off, of its last batch.",
            "processed_rows_per_second",
        ),
        "tablecast_pipeline_restarts": ("Starts after a failure.", "restarts"),
    }
    running: dict[Place, float] = {(row["name"],): row["state"] == "running" for row in rows}
    return [
        _labelled("tablecast_pipeline_running", "1 while its runner says so.", ("pipeline",), running),
        *(
            _labelled(
                name, meaning, ("pipeline",), {(row["name"],): row[field] for row in rows if row[field] is not None}
            )
            for name, (meaning, field) in fields.items()
        ),
    ]


def _replication(now: ReplicationStatus) -> Iterator[Metric]:
    """Counts are since the server was started."""
    yield _gauge("replication_online", "1 while connected to the broker.", now.online)
    yield _gauge("replication_outbox_size", "Events that the broker has not acknowledged.", now.pending)
    count = now.sequence & MAX_EPOCH_EVENTS  # a sample is a float, which cannot hold the whole number
    yield _gauge("replication_sequence_number_current", "The number of this node's last event in its epoch.", count)
    yield _gauge("replication_peers", "Other nodes that are online.", len(now.peers))
    yield _count("replication_events_published_total", "Events that the broker acknowledged.", now.published)
    yield _count(
        "replication_publish_errors_total", "Events refused by the broker or over a limit.", now.publish_errors
    )
    yield _count("replication_events_set_aside_total", "Of them, those that are not sent again.", now.set_aside)
    yield _count("replication_events_dropped_total", "Events given up for want of room, ever.", now.given_up)
    yield _labelled_count(
        "replication_events_received_total",
        "Events of other nodes, by what became of them.",
        ("outcome",),
        {(name,): getattr(now, name) for name in ("applied", "beaten", "seen", "quarantined")},
    )
    yield _count("replication_clocks_ahead_total", "Events whose writer's clock is over 5 min ahead.", now.ahead)
    yield _count("replication_comparisons_total", "Comparisons with a peer that came to their end.", now.rounds)
    yield _count("replication_comparisons_differing_total", "Of them, those that found a difference.", now.differing)
    yield _count("replication_events_pulled_total", "Events brought by comparing.", now.pulled)
    yield _count("replication_events_pushed_total", "Events given by comparing.", now.pushed)


def _live(stats: HubStats, connections: int) -> Iterator[Metric]:
    counts = stats.counts
    yield _gauge("tablecast_live_connections", "Sockets and streams of live queries.", connections)
    yield _gauge("tablecast_live_subscriptions", "Live queries that are told what changes.", stats.subscriptions)
    yield _gauge("tablecast_live_groups", "Different ones among them.", len(stats.groups))
    yield _gauge("tablecast_live_behind_commits", "Commits that they were not told yet.", stats.behind)
    yield _count("tablecast_live_deliveries_total", "Changes of a commit given to a live query.", counts.deliveries)
    yield _count("tablecast_live_encodings_total", "How often such changes were encoded.", counts.encodings)
    yield _count("tablecast_live_evaluations_total", "Rows judged for a live query.", counts.evaluations)
    yield _count("tablecast_live_evaluation_seconds_total", "Time spent on that.", counts.evaluation_seconds)
    yield _count("tablecast_live_catch_ups_total", "How often live queries fell behind the writer.", counts.caught_up)


def _door(stats: DoorStats) -> Iterator[Metric]:
    yield _gauge(
        "tablecast_newcomers_waiting", "Connections, requests and live queries of newcomers that wait.", stats.waiting
    )
    yield _count("tablecast_newcomers_waited_total", "Connections that had to wait to be let in.", stats.waited)
    yield _count("tablecast_newcomers_refused_total", "Connections that waited for too long.", stats.refused)
    yield _count("tablecast_newcomers_seconds_total", "Time of the event loop spent on them.", stats.seconds)


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=value)


def _count(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(name, meaning, value=value)


def _labelled_count(name: str, meaning: str, labels: Sequence[str], values: Mapping[Place, float]) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=labels)
    for place, value in values.items():
        family.add_metric(place, value)
    return family


def _labelled(name: str, meaning: str, labels: Sequence[str], values: Mapping[Place, float]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=labels)
    for place, value in values.items():
        family.add_metric(place, value)
    return family
