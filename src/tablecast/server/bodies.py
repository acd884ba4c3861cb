"""What a request carries: bytes read within their limits, then decoded by their content type.

A body is bounded three times: by its Content-Length before a byte is read, while it arrives, and while it is unpacked.
It must arrive in `body_timeout_seconds`. Small bodies are decoded on the event loop, where a thread would cost more than
the work; large ones in a thread, so that they hold nobody up.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive

from tablecast.client.values import from_extension
from tablecast.codec.nulls import Forgiving
from tablecast.errors import InvalidRequest, TablecastError, Timeout, TooLarge, UnsupportedMediaType

JSON = "application/json"
MSGPACK = "application/msgpack"
NDJSON = "application/x-ndjson"
TAR = "application/x-tar"
ARROW = "application/vnd.apache.arrow.stream"
LOG = "application/vnd.tablecast.log"  # stored log batches: see codec.consumed
SEALED = "application/vnd.tablecast.sealed"  # a part of a load: see codec.sealed
EVENTS = "text/event-stream"  # a live query: see server.api_live

LARGE_BYTES = 65_536  # decoding that much takes about a millisecond: from here on in a thread
DISCARD_SECONDS = 1.0  # a refused body is read on for that long, so that its sender comes to read the refusal
_GZIP = 16 + zlib.MAX_WBITS

T = TypeVar("T")
R = TypeVar("R")
Rows = list[dict[str, Any] | list[Any]]


class ClientGone(Exception):
    """The client closed the connection; there is nobody to answer."""


# --- reading ----------------------------------------------------------------------------------------------------


class Body:
    """The body of one request, read once. `unread` says that bytes are left on the connection."""

    is_streamed = False

    def __init__(
        self,
        headers: Headers,
        receive: Receive,
        *,
        max_bytes: int,
        timeout_seconds: float,
        limit_name: str = "max_body_bytes",
    ) -> None:
        self._headers = headers
        self._receive = receive
        self._limit_name = limit_name
        self._max_bytes = max_bytes
        self._timeout_seconds = timeout_seconds
        self.unread = "content-length" in headers or "transfer-encoding" in headers

    async def read(self) -> bytes:
        """Raises TooLarge, Timeout, InvalidRequest, UnsupportedMediaType or ClientGone."""
        try:
            self._check_length()
            async with asyncio.timeout(self._timeout_seconds):
                body = await self._read_all()
        except TimeoutError:
            raise Timeout(
                f"the body did not arrive within {self._timeout_seconds:g} seconds", seconds=self._timeout_seconds
            ) from None
        except TooLarge:
            await self._discard()
            raise
        self.unread = False
        return await self._unpacked(body)

    def _check_length(self) -> None:
        declared = self._headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > self._max_bytes:
            self._refuse(int(declared))

    async def _read_all(self) -> bytes:
        message = await self._receive()
        if message["type"] != "http.disconnect" and not message.get("more_body", False):
            body: bytes = message.get("body", b"")
            if len(body) > self._max_bytes:
                self._refuse(len(body))
            return body
        parts: list[bytes] = []
        size = 0
        while True:
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max_bytes:
                self._refuse(size)
            if not message.get("more_body", False):
                return b"".join(parts)
            message = await self._receive()

    async def _discard(self) -> None:
        """Closing with unread bytes resets the connection, and the refusal would be lost with it. Whoever waits for
        100 Continue has sent nothing and needs no such care."""
        if self._headers.get("expect", "").lower() == "100-continue":
            return
        try:
            async with asyncio.timeout(DISCARD_SECONDS):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return

    def _refuse(self, size: int) -> NoReturn:
        raise TooLarge(
            f"the body has {size} bytes or more: {self._limit_name} is {self._max_bytes}", limit=self._max_bytes
        )

    async def _unpacked(self, body: bytes) -> bytes:
        encoding = self._headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("identity", ""):
            return body
        if encoding != "gzip":
            raise UnsupportedMediaType(
                f"Content-Encoding {encoding!r} is not taken: gzip or none", content_encoding=encoding
            )
        return await in_thread_if_large(len(body), self._gunzip, body)

    def _gunzip(self, body: bytes) -> bytes:
        inflate = zlib.decompressobj(_GZIP)
        try:
            unpacked = inflate.decompress(body, self._max_bytes + 1)
        except zlib.error as e:
            raise InvalidRequest(f"the body is not gzip: {e}") from None
        if len(unpacked) > self._max_bytes:
            self._refuse(len(unpacked))
        if not inflate.eof:
            raise InvalidRequest(f"the gzip body is cut off after {len(body)} bytes")
        return unpacked


async def in_thread_if_large(size: int, function: Callable[..., R], *args: Any) -> R:
    if size <= LARGE_BYTES:
        return function(*args)
    return await asyncio.get_running_loop().run_in_executor(None, function, *args)


# --- decoding ---------------------------------------------------------------------------------------------------


def content_type(headers: Headers, taken: tuple[str, ...]) -> str:
    """One of `taken`; JSON if the request does not say."""
    said = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not said:
        return taken[0]
    if said not in taken:
        raise UnsupportedMediaType(
            f"Content-Type {said!r} is not taken here: use {' or '.join(taken)}", content_type=said, taken=list(taken)
        )
    return said


class Decoder:
    """JSON or MessagePack → one type, strictly, but for nulls (codec.nulls). MessagePack may have one of its own, that
    leaves some of it packed."""

    def __init__(self, kind: Any, packed_kind: Any = None) -> None:
        packed = packed_kind or kind
        self._decode: dict[str, Callable[[bytes], Any]] = {
            JSON: Forgiving(msgspec.json, kind, msgspec.json.Decoder(kind).decode),
            MSGPACK: Forgiving(
                msgspec.msgpack, packed, msgspec.msgpack.Decoder(packed, ext_hook=from_extension).decode
            ),
        }

    def __call__(self, body: bytes, media_type: str) -> Any:
        try:
            return self._decode[media_type](body)
        except TablecastError:
            raise
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as e:
            raise InvalidRequest(_explained(e, body)) from None


def decode_ndjson(body: bytes) -> Rows:
    """One object per line; empty lines are passed over."""
    rows: Rows = []
    for number, line in enumerate(body.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(_decode_line(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as e:
            raise InvalidRequest(f"line {number} of the body: {_explained(e, line)}", line=number) from None
    return rows


_decode_line = msgspec.json.Decoder(dict[str, Any]).decode


def _explained(error: Exception, body: bytes) -> str:
    if not body:
        return "the body is empty"
    if isinstance(error, RecursionError):
        return "the body is nested too deep"
    text = str(error)
    return f"the body is cut off after {len(body)} bytes" if "truncated" in text else f"the body is wrong: {text}"
