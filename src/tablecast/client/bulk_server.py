"""Which server, and who asks: the settings of a bulk client, as one value that travels to other processes.

It is pickled with the work of a job, so it holds plain values only; secrets are in it, and never in what is printed.
"""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from tablecast.client.retry import Retry
from tablecast.errors import InvalidRequest

TIMEOUT_SECONDS = 60.0
BULK_RETRY = Retry(attempts=40, backoff_seconds=0.1, max_backoff_seconds=5.0, total_seconds=120.0)


@dataclass(frozen=True)
class Server:
    """`timeout_seconds` is how long the server may stay silent; `retry` how often, and how long, a call is repeated that
    failed in a way that passes. Credentials may also stand in the URL."""

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    timeout_seconds: float = TIMEOUT_SECONDS
    retry: Retry = BULK_RETRY

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidRequest("the address of a server is http://host:port or https://host:port", url=parts.scheme)
        self._set("user", self.user or _unquoted(parts.username))
        self._set("password", self.password or _unquoted(parts.password))
        self._set("url", f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}")
        if self.user is not None and self.token is not None:
            raise InvalidRequest("give a user with a password, or a token, not both")
        if (self.user is None) != (self.password is None):
            raise InvalidRequest("a user signs in with a password: give both, or a token")
        if self.ca_file is not None and parts.scheme != "https":
            raise InvalidRequest(f"ca_file goes with https, and {self.url} is http", url=self.url)
        if self.timeout_seconds <= 0:
            raise InvalidRequest(f"timeout_seconds is {self.timeout_seconds:g}: it is more than 0")

    def _set(self, name: str, value: str | None) -> None:
        object.__setattr__(self, name, value)

    @property
    def authorization(self) -> str | None:
        """A password is sent as it is, without fetching a token for it first: hundreds of short tasks would each fetch
        one, at the price that passwords cost a server on purpose, while one that was found right is remembered."""
        if self.token is not None:
            return f"Bearer {self.token}"
        if self.user is None:
            return None
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()

    def tls(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https:"):
            return None
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except OSError as e:  # SSLError is one too
            raise InvalidRequest(f"the certificates of {self.ca_file} cannot be read: {e}", ca_file=self.ca_file) from e


def _unquoted(part: str | None) -> str | None:
    return None if part is None else unquote(part)
