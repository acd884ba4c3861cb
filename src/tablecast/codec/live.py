"""Messages of live queries, as they travel over `/v1/ws`: JSON in text frames, MessagePack in binary ones.

A message is a map whose `type` says what it is. docs/live.asyncapi.yaml is the contract in full; in short:

    client → server
      authenticate   {user, password} or {token}
      subscribe      {id, sql, params?, namespace?, resume?, history?, batch_rows?}
      next_batch     {id}
      unsubscribe    {id}
      ping           {nonce?}
    server → client
      auth_ok        {user, role}
      subscribed     {id, seq, history, mode, schema, key, sampled?}
      rows           {id, seq, rows, last}              the first batch unasked, each further one for a next_batch
      live           {id, channel, seq, changes}        what happened between the rows (or `resume`) and seq
      change         {channel, seq, changes}            one commit, whole; the same bytes for all who ask the same
      lagging        {id, seq}                          too slow: subscribe again with resume = seq
      error          {id?, code, message, details?}     with an id: of that subscription; else the connection closes
      unsubscribed   {id}
      pong           {seq, nonce?}                      everything up to seq was told to what is live

A `change` is for every subscription that was told its channel in `live` and has seen less than its `seq`: two
subscriptions of one connection that ask the same share a channel, and get one message. What `seq` says may be resumed
from, with one exception: `rows` are not all there before `last`. It goes with the `history` of `subscribed`: numbers of
another one are those of other commits. A query over a system table is `sampled`: its `seq` counts samples, above all commit
numbers, and a resume of it is a refetch.

Values in JSON are those of `POST /v1/api/sql`. In MessagePack they keep their types by the extensions of client.values;
JSON columns are text there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from tablecast.codec.nulls import Forgiving

MAX_MESSAGE_BYTES = 65_536  # from a client: a statement and its parameters; rows go other ways
MAX_ID_CHARS = 64  # a name chosen by the client, repeated in many messages
MAX_HISTORY_CHARS = 64  # ours have 16; a client sends back what it was told
MAX_BATCH_ROWS = 10_000  # rows in one message: more would hold up the other subscriptions of the connection
DEFAULT_BATCH_ROWS = 1_000
MAX_EXACT_INT = 2**53 - 1  # what every reader of JSON holds as it is

Form = Literal["json", "msgpack"]
JSON_FORM: Form = "json"
MSGPACK_FORM: Form = "msgpack"
SUBPROTOCOLS: dict[str, Form] = {"tablecast.json": JSON_FORM, "tablecast.msgpack": MSGPACK_FORM}

Id = Annotated[int, Meta(ge=0, le=MAX_EXACT_INT)] | Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS)]
Seq = Annotated[int, Meta(ge=0, le=MAX_EXACT_INT)]
Mode = Literal["snapshot", "resumed", "refetch"]
OpName = Literal["insert", "update", "delete"]
Values = Sequence[Any]  # a list when decoded


# --- client → server --------------------------------------------------------------------------------------------


class Authenticate(Struct, tag_field="type", tag="authenticate", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A password, or an access token."""

    user: str | None = None
    password: str | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        given = (self.user is not None, self.password is not None, self.token is not None)
        if given not in ((True, True, False), (False, False, True)):
            raise ValueError("authenticate takes user and password, or a token")

    def __repr__(self) -> str:
        return f"Authenticate({'a token' if self.user is None else repr(self.user)})"  # the rest is nobody's business


class Subscribe(Struct, tag_field="type", tag="subscribe", forbid_unknown_fields=True, frozen=True):
    """`id` is the client's name for it, unique on its connection; `resume` the last commit number it has seen, which takes
    the `history` that it was told with."""

    id: Id
    sql: str
    params: list[Any] = []
    namespace: str | None = None
    resume: Seq | None = None
    history: Annotated[str, Meta(max_length=MAX_HISTORY_CHARS)] | None = None
    batch_rows: Annotated[int, Meta(ge=1, le=MAX_BATCH_ROWS)] = DEFAULT_BATCH_ROWS


class NextBatch(Struct, tag_field="type", tag="next_batch", forbid_unknown_fields=True, frozen=True):
    """One that nobody waits for is passed over: what it asked for may have ended while it was on its way."""

    id: Id


class Unsubscribe(Struct, tag_field="type", tag="unsubscribe", forbid_unknown_fields=True, frozen=True):
    id: Id


class Ping(Struct, tag_field="type", tag="ping", forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    nonce: Id | None = None


ClientMessage = Authenticate | Subscribe | NextBatch | Unsubscribe | Ping


# --- server → client --------------------------------------------------------------------------------------------


class AuthOk(Struct, tag_field="type", tag="auth_ok", frozen=True):
    user: str
    role: str


class LiveColumn(Struct, frozen=True, omit_defaults=True):
    """A hidden column was not asked for: it is part of the primary key, so that every row has its key."""

    name: str
    type: str | None
    hidden: bool = False


class Subscribed(Struct, tag_field="type", tag="subscribed", frozen=True, omit_defaults=True):
    """`mode` says what comes: all rows; what changed since `resume`; or all rows, because that is no longer known.
    `sampled`: of a query over a system table, every how many seconds that is looked at."""

    id: Id
    seq: int
    history: str
    mode: Mode
    schema: list[LiveColumn]
    key: list[int]
    sampled: float | None = None


class Rows(Struct, tag_field="type", tag="rows", frozen=True):
    """Rows as they were at commit `seq`."""

    id: Id
    seq: int
    rows: list[Values]
    last: bool


class RowChange(Struct, frozen=True, omit_defaults=True):
    """A row as it is now, or the key of one that is no longer there (or no longer fits the filter)."""

    op: OpName
    row: Values | None = None
    key: Values | None = None


class Live(Struct, tag_field="type", tag="live", frozen=True):
    id: Id
    channel: int
    seq: int
    changes: list[RowChange]


class Change(Struct, tag_field="type", tag="change", frozen=True):
    channel: int
    seq: int
    changes: list[RowChange]


class Lagging(Struct, tag_field="type", tag="lagging", frozen=True):
    id: Id
    seq: int


class Error(Struct, tag_field="type", tag="error", frozen=True, omit_defaults=True, kw_only=True):
    id: Id | None = None
    code: str
    message: str
    details: dict[str, Any] = {}


class Unsubscribed(Struct, tag_field="type", tag="unsubscribed", frozen=True):
    id: Id


class Pong(Struct, tag_field="type", tag="pong", frozen=True, omit_defaults=True):
    """Every subscription that is live has been told everything up to commit `seq`, before this."""

    seq: int
    nonce: Id | None = None


ServerMessage = AuthOk | Subscribed | Rows | Live | Change | Lagging | Error | Unsubscribed | Pong


# --- bytes ------------------------------------------------------------------------------------------------------

# What neither form has a type for, as a detail of an error may be, is shown as text.
_encoders: dict[Form, Callable[[Any], bytes]] = {
    JSON_FORM: msgspec.json.Encoder(enc_hook=str).encode,
    MSGPACK_FORM: msgspec.msgpack.Encoder(enc_hook=str).encode,
}


def encode(message: ClientMessage | ServerMessage, form: Form) -> bytes:
    """Values inside (rows, keys, parameters) are in the form's own terms already."""
    return _encoders[form](message)


T = TypeVar("T")
ExtHook = Callable[[int, memoryview], Any]


class LiveDecoder(Generic[T]):
    """Bytes of either form → messages of one side. `ext_hook` makes values of MessagePack's extensions."""

    def __init__(self, messages: Any, ext_hook: ExtHook) -> None:
        self._decode: dict[Form, Callable[[bytes], T]] = {
            JSON_FORM: Forgiving(msgspec.json, messages, msgspec.json.Decoder(messages).decode),
            MSGPACK_FORM: Forgiving(
                msgspec.msgpack, messages, msgspec.msgpack.Decoder(messages, ext_hook=ext_hook).decode
            ),
        }

    def __call__(self, data: bytes, form: Form) -> T:
        """Raises msgspec's errors, ValueError (of text that is not UTF-8, too) or RecursionError, or what `ext_hook` does."""
        return self._decode[form](data)


def client_decoder(ext_hook: ExtHook) -> LiveDecoder[ClientMessage]:
    return LiveDecoder(ClientMessage, ext_hook)


def server_decoder(ext_hook: ExtHook) -> LiveDecoder[ServerMessage]:
    return LiveDecoder(ServerMessage, ext_hook)
