"""The settings of a server, each with its type, bounds, default and meaning.

How they are spelt in a file, and where values come from: server/configuration.py.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tablecast.edge.address import check_prefix, parse_address
from tablecast.engine.change_index import CHANGES_KEPT_SECONDS, CHANGES_MAX_BYTES
from tablecast.engine.durability import Durability
from tablecast.engine.identity import check_node_id
from tablecast.engine.live_sampling import SAMPLE_SECONDS
from tablecast.engine.snapshots import MAX_SNAPSHOTS, SNAPSHOTS_PER_USER
from tablecast.errors import InvalidRequest

DAY_SECONDS = 86_400
MAX_ANSWER_BYTES = 256 * 2**20  # of one answer: it is in memory as rows and again as bytes before the first is sent
MAX_PART_BYTES = 2**31  # of a load: what one task of a large job sends; it goes to disk, not to memory

LogFormat = Literal["json", "text"]
LogLevel = Literal["debug", "info", "warning", "error"]
Overflow = Literal["coalesce", "block", "drop_oldest"]


def _about(meaning: str, *, ge: float | None = None, le: float | None = None) -> Meta:
    return Meta(description=meaning, ge=ge, le=le)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one server. In a text that is a path or an address, "" means: none."""

    data: Annotated[str, _about("the directory of the database")] = "tablecast-data"
    host: Annotated[str, _about("the address to listen on")] = "127.0.0.1"
    port: Annotated[int, _about("the port to listen on; 0 takes any that is free", ge=0, le=65_535)] = 8080
    tls_certificate: Annotated[str, _about("a PEM file with the certificate and its chain; needs tls_key")] = ""
    tls_key: Annotated[str, _about("a PEM file with the private key of tls_certificate")] = ""
    insecure_network: Annotated[
        bool, _about("listen beyond this machine without TLS: passwords and data travel readable")
    ] = False
    trusted_proxies: Annotated[
        str, _about("addresses or networks, by comma, whose X-Forwarded-For header is believed")
    ] = ""

    durability: Annotated[str, _about("what a crash of the machine may lose: fsync, interval(ms) or none")] = "fsync"
    jobs_interval_seconds: Annotated[
        float, _about("how often retention, expiry and overdue claims are looked after", ge=0.1, le=DAY_SECONDS)
    ] = 10.0

    max_body_bytes: Annotated[int, _about("the largest body of a request", ge=1_000, le=2_000_000_000)] = 10_000_000
    max_part_bytes: Annotated[
        int, _about("the largest part of a load, which goes to disk as it arrives", ge=1_000, le=2**40)
    ] = MAX_PART_BYTES
    max_sql_bytes: Annotated[int, _about("the longest SQL text of a request", ge=100, le=1_000_000)] = 1_000_000
    max_result_rows: Annotated[int, _about("rows that one result may have", ge=1, le=100_000_000)] = 100_000
    max_answer_bytes: Annotated[
        int, _about("bytes that the answer to one SQL request may have", ge=1_000, le=2**40)
    ] = MAX_ANSWER_BYTES
    max_snapshots_per_user: Annotated[
        int, _about("snapshots of tables that a user may have open; there are 256 in all", ge=1, le=MAX_SNAPSHOTS)
    ] = SNAPSHOTS_PER_USER
    statement_timeout_seconds: Annotated[float, _about("how long a statement may run", ge=0.001, le=3_600)] = 30.0
    query_memory_mb: Annotated[int, _about("memory for all queries that run at a time", ge=16, le=1_000_000)] = 512
    body_timeout_seconds: Annotated[
        float, _about("how long a client may take to send a request's head, and then its body", ge=0.1, le=3_600)
    ] = 30.0
    default_consume_timeout: Annotated[
        float,
        _about("seconds that a consume waits which does not say how long; at most max_consume_timeout", ge=0, le=3_600),
    ] = 30.0
    max_consume_timeout: Annotated[
        float, _about("seconds that a consume may wait; one that asks for more waits that long", ge=0, le=3_600)
    ] = 300.0
    poll_interval_ms: Annotated[
        int, _about("taken, and without effect: nothing polls", ge=0, le=DAY_SECONDS * 1_000)
    ] = 0
    max_parked_polls: Annotated[int, _about("consumes that wait at a time", ge=0, le=1_000_000)] = 10_000
    max_connections: Annotated[int, _about("connections open at a time", ge=1, le=1_000_000)] = 12_000
    newcomers_share: Annotated[
        float,
        _about(
            "how much of the event loop may go to new connections and live queries while others are served",
            ge=0.01,
            le=1,
        ),
    ] = 0.15
    newcomers_wait_seconds: Annotated[
        float, _about("how long a new connection may wait for that before it is refused", ge=0.05, le=60)
    ] = 5.0

    changes_kept_seconds: Annotated[
        int, _about("how long a reader of live queries may be away and still resume", ge=0, le=30 * DAY_SECONDS)
    ] = CHANGES_KEPT_SECONDS
    changes_max_bytes: Annotated[
        int, _about("what is kept of a table's changes for that; the oldest go first", ge=0, le=2**40)
    ] = CHANGES_MAX_BYTES
    live_max_subscriptions: Annotated[int, _about("live queries that one connection may have", ge=1, le=1_000_000)] = (
        1_000
    )
    live_buffer_bytes: Annotated[
        int, _about("what a reader of live queries may leave untaken before it is told to resume", ge=1_000, le=10**9)
    ] = 2**20
    live_auth_seconds: Annotated[
        float, _about("how long a live connection may take to say who it is", ge=0.05, le=60)
    ] = 3.0
    live_ping_seconds: Annotated[
        float, _about("how often a live connection is asked whether it is still there", ge=0.05, le=3_600)
    ] = 30.0
    live_system_sample_seconds: Annotated[
        float, _about("how often a system table is looked at while a live query is over it", ge=0.05, le=3_600)
    ] = SAMPLE_SECONDS
    allowed_origins: Annotated[
        str, _about("origins, by comma, whose pages may open live connections, beside our own; * is any")
    ] = ""

    requests_per_second_per_user: Annotated[
        float, _about("requests that a user may make, bursts of a second's worth included", ge=0.1, le=1e9)
    ] = 10_000.0
    requests_per_second_per_address: Annotated[
        float, _about("requests that an address may make, signed in or not", ge=0.1, le=1e9)
    ] = 10_000.0
    login_attempts: Annotated[
        int, _about("wrong passwords for a user from an address before it is locked out", ge=1, le=1_000)
    ] = 5
    login_attempts_per_address: Annotated[
        int, _about("wrong passwords from an address, for whatever user, before it is locked out", ge=1, le=1_000_000)
    ] = 100
    lockout_seconds: Annotated[float, _about("how long a lock-out lasts", ge=1, le=DAY_SECONDS)] = 300.0
    access_token_seconds: Annotated[int, _about("how long an access token is good for", ge=1, le=DAY_SECONDS)] = 900
    refresh_token_seconds: Annotated[
        int, _about("how long a refresh token is good for", ge=1, le=366 * DAY_SECONDS)
    ] = 7 * DAY_SECONDS
    allow_user_role_consume: Annotated[bool, _about("let the role user consume, only messages of its own rows")] = False

    mqtt: Annotated[
        str,
        _about(
            "the MQTT broker to replicate through, as mqtt://user:password@host:1883 or mqtts://…; none: no replication"
        ),
    ] = ""
    node_id: Annotated[str, _about("the name of this node among its peers, given once and kept; none: made up")] = ""
    mqtt_prefix: Annotated[
        str, _about("the first levels of all topics at the broker; nodes that share it replicate")
    ] = "tablecast"
    mqtt_ca: Annotated[
        str, _about("a PEM file with the certificates that the broker's is signed by; none: the system's")
    ] = ""
    mqtt_overflow: Annotated[Overflow, _about("what happens when more events wait than mqtt_outbox_events allows")] = (
        "coalesce"
    )
    mqtt_outbox_events: Annotated[
        int, _about("events that may wait for the broker before mqtt_overflow acts", ge=1, le=1_000_000_000)
    ] = 10_000
    mqtt_compare_seconds: Annotated[
        float, _about("how often this node compares its tables with those of a peer", ge=0.1, le=DAY_SECONDS)
    ] = 60.0

    console: Annotated[bool, _about("serve the console, a page for browsers, at /")] = True
    drain_seconds: Annotated[int, _about("how long requests may go on after the signal to stop", ge=0, le=3_600)] = 30
    metrics_public: Annotated[bool, _about("/metrics without credentials")] = False
    log_format: Annotated[LogFormat, _about("how log lines are written")] = "text"
    log_level: Annotated[LogLevel, _about("the least severe lines that are written")] = "info"
    otel_endpoint: Annotated[str, _about("where traces are sent, an OTLP/HTTP address; needs tablecast[otel]")] = ""

    def __post_init__(self) -> None:
        _check("durability", Durability.parse, self.durability)
        if bool(self.tls_certificate) != bool(self.tls_key):
            given, missing = ("tls_certificate", "tls_key") if self.tls_certificate else ("tls_key", "tls_certificate")
            raise InvalidRequest(f"{given} is set and {missing} is not: TLS takes both", setting=missing)
        if self.max_parked_polls > self.max_connections:
            raise InvalidRequest(
                f"max_parked_polls is {self.max_parked_polls}, more than max_connections, {self.max_connections}: "
                "each parked consume holds a connection",
                setting="max_parked_polls",
            )
        for proxy in self.proxies:
            _check_network(proxy)
        self._check_replication()

    def _check_replication(self) -> None:
        if self.mqtt:
            _check("mqtt", parse_address, self.mqtt)
        elif self.node_id:
            raise InvalidRequest("node_id is set and mqtt is not: a node has a broker", setting="node_id")
        _check("mqtt_prefix", check_prefix, self.mqtt_prefix)
        if self.node_id:
            _check("node_id", check_node_id, self.node_id)
        for origin in self.origins:
            _check_origin(origin)

    @property
    def proxies(self) -> list[str]:
        return [proxy.strip() for proxy in self.trusted_proxies.split(",") if proxy.strip()]

    @property
    def origins(self) -> list[str]:
        return [origin.strip().lower() for origin in self.allowed_origins.split(",") if origin.strip()]


def _check(setting: str, judge: Callable[[str], object], text: str) -> None:
    """What somebody else judges, with the name of the setting."""
    try:
        judge(text)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, setting=setting) from None


def _check_network(text: str) -> None:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise InvalidRequest(
            f"trusted_proxies names {text!r}; it takes addresses and networks, as 10.0.0.7 or 10.0.0.0/8",
            setting="trusted_proxies",
        ) from None


def _check_origin(text: str) -> None:
    if text != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+", text):
        raise InvalidRequest(
            f"allowed_origins names {text!r}; it takes origins as https://app.example.com, or *",
            setting="allowed_origins",
        )
