"""`mqtt://user:password@host:1883`, taken apart and checked. Shown without its password."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from tablecast.errors import InvalidRequest

PORTS = {"mqtt": 1883, "mqtts": 8883}
MAX_PREFIX_BYTES = 128  # of the topics of one group of nodes: with a node id it must stay a short topic


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    host: str
    port: int
    tls: bool
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'mqtts' if self.tls else 'mqtt'}://{host}:{self.port}"


def parse_address(text: str) -> BrokerAddress:
    parts = urlsplit(text)
    if parts.scheme not in PORTS or not parts.hostname:
        raise _wrong("it begins with mqtt:// or mqtts:// and a host, as mqtt://broker.local:1883")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _wrong("nothing follows the port, as in mqtt://broker.local:1883")
    try:
        port = parts.port or PORTS[parts.scheme]
    except ValueError:
        raise _wrong("its port is a number from 1 to 65535") from None
    user, password = (None if part is None else unquote(part) for part in (parts.username, parts.password))
    return BrokerAddress(parts.hostname, port, parts.scheme == "mqtts", user, password)


def check_prefix(prefix: str) -> str:
    """The first part of all topics: levels of MQTT without wildcards."""
    levels = prefix.split("/")
    if not all(levels) or any(bad in prefix for bad in "+#$\0") or len(prefix.encode()) > MAX_PREFIX_BYTES:
        raise InvalidRequest(
            f"{prefix!r} cannot begin a topic: a prefix is at most {MAX_PREFIX_BYTES} bytes, levels with / between them, "
            "without + # $",
            prefix=prefix,
        )
    return prefix


def _wrong(right: str) -> InvalidRequest:
    """Without the text itself: it may have a password in it."""
    return InvalidRequest(f"this is not the address of a broker: {right}", setting="mqtt")
