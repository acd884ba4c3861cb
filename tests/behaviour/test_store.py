"""One suite for every store: what `tablecast.storage.base` promises; a state machine against a plain dict."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tablecast.errors import BackupError, CorruptData, DatabaseClosed
from tablecast.storage.base import Family, Reader, StorageFailure, Store
from tablecast.storage.memory import MemoryStore
from tablecast.storage.rocks import RocksStore, read_sorted
from tablecast.storage.sst import write_sst
from tablecast.testing.faulty import FaultyStore

ROWS, LOG, META = Family.ROWS, Family.LOG, Family.META


@dataclass
class Kind:
    """How one implementation is opened, again, and from a checkpoint."""

    open: Callable[[], Any]
    reopen: Callable[[Any], Any]
    restore: Callable[[str], Any]


def rocks(path: Path) -> Kind:
    where = str(path / "db")
    return Kind(lambda: RocksStore.open(where), lambda _: RocksStore.open(where), RocksStore.open)


def memory(_: Path) -> Kind:
    return Kind(lambda: MemoryStore(read_sorted), lambda store: store.crash(), MemoryStore.open)


def faulty(_: Path) -> Kind:
    return Kind(
        lambda: FaultyStore(MemoryStore(read_sorted)),
        lambda store: FaultyStore(store.store.crash()),
        lambda path: FaultyStore(MemoryStore.open(path)),
    )


@pytest.fixture(params=[rocks, memory, faulty], ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> Kind:
    return request.param(tmp_path)


@pytest.fixture
def store(kind: Kind) -> Iterator[Store]:
    store = kind.open()
    yield store
    store.close()


def put(store: Store, entries: dict[bytes, bytes], family: Family = ROWS) -> None:
    batch = store.batch()
    for key, value in entries.items():
        batch.put(family, key, value)
    store.write(batch)


def keys(reader: Reader, *bounds: Any, family: Family = ROWS, **how: bool) -> list[bytes]:
    return [key for key, _ in reader.scan(family, *bounds, **how)]


# --- getting ------------------------------------------------------------------------------------------------


def test_a_key_that_was_never_written_is_none(store: Store) -> None:
    put(store, {b"a": b"1"})
    assert store.get(ROWS, b"b") is None
    assert store.get(ROWS, b"") is None
    assert store.snapshot().get(ROWS, b"b") is None


def test_families_are_apart(store: Store) -> None:
    put(store, {b"k": b"row"}, ROWS)
    put(store, {b"k": b"log"}, LOG)
    assert (store.get(ROWS, b"k"), store.get(LOG, b"k"), store.get(META, b"k")) == (b"row", b"log", None)
    assert list(store.scan(META)) == []


def test_every_family_holds_entries(store: Store) -> None:
    for family in Family:
        put(store, {b"k": family.value.encode()}, family)
    assert [store.get(family, b"k") for family in Family] == [family.value.encode() for family in Family]


def test_empty_key_and_empty_value_are_like_any_other(store: Store) -> None:
    put(store, {b"": b"first", b"a": b"", b"\x00": b"second"})
    assert store.get(ROWS, b"") == b"first"
    assert store.get(ROWS, b"a") == b""
    assert list(store.scan(ROWS)) == [(b"", b"first"), (b"\x00", b"second"), (b"a", b"")]


def test_large_values_come_back_whole(store: Store) -> None:
    large = bytes(range(256)) * 8192  # 2 MiB
    put(store, {b"k%d" % i: large + b"%d" % i for i in range(4)}, LOG)
    assert store.get(LOG, b"k3") == large + b"3"
    assert [value[-1:] for _, value in store.scan(LOG)] == [b"0", b"1", b"2", b"3"]


def test_get_many_answers_in_order_with_repeats_and_gaps(store: Store) -> None:
    put(store, {b"a": b"1", b"b": b"2"})
    asked = [b"b", b"missing", b"a", b"b", b"b"]
    for reader in (store, store.snapshot()):
        assert reader.get_many(ROWS, asked) == [b"2", None, b"1", b"2", b"2"]
        assert reader.get_many(ROWS, []) == []


# --- scanning -----------------------------------------------------------------------------------------------


def test_keys_order_as_unsigned_bytes(store: Store) -> None:
    unordered = [b"\xff", b"a", b"\x80", b"\x7f", b"", b"a\x00", b"ab", b"b", b"\xff\xff", b"\x00"]
    put(store, dict.fromkeys(unordered, b"v"))
    assert keys(store) == sorted(unordered)
    assert keys(store, reverse=True) == sorted(unordered, reverse=True)


ABCDE = {bytes([letter]): b"v" for letter in b"acegi"}


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (b"", None, b"acegi"),
        (b"c", None, b"cegi"),
        (b"d", None, b"egi"),
        (b"", b"e", b"ac"),
        (b"", b"f", b"ace"),
        (b"c", b"g", b"ce"),
        (b"b", b"h", b"ceg"),
        (b"j", None, b""),
        (b"", b"a", b""),
        (b"", b"", b""),
        (b"e", b"e", b""),
        (b"g", b"c", b""),
        (b"d", b"e", b""),
    ],
)
def test_scan_takes_start_and_leaves_out_end(store: Store, start: bytes, end: bytes | None, expected: bytes) -> None:
    put(store, ABCDE)
    for reader in (store, store.snapshot()):
        assert b"".join(keys(reader, start, end)) == expected
        assert b"".join(keys(reader, start, end, reverse=True)) == expected[::-1]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (b"c", None, b"cegi"),  # the key itself
        (b"d", None, b"cegi"),  # the one before
        (b"z", None, b"i"),  # the last
        (b"", None, b"acegi"),  # nothing at or before: from the start on
        (b"A", None, b"acegi"),
        (b"d", b"f", b"ce"),
        (b"d", b"d", b"c"),
        (b"d", b"c", b""),  # the floor itself is not below the end
        (b"z", b"c", b""),
    ],
)
def test_floor_begins_at_the_greatest_key_not_after_start(
    store: Store, start: bytes, end: bytes | None, expected: bytes
) -> None:
    put(store, ABCDE)
    for reader in (store, store.snapshot()):
        assert b"".join(keys(reader, start, end, floor=True)) == expected


def test_floor_of_nothing_is_nothing(store: Store) -> None:
    assert keys(store, b"a", floor=True) == []


def test_floor_and_reverse_together_are_refused(store: Store) -> None:
    for reader in (store, store.snapshot()):
        with pytest.raises(ValueError, match="not both"):
            reader.scan(ROWS, b"a", reverse=True, floor=True)


def test_long_scans_are_complete_in_both_directions(store: Store) -> None:
    many = {b"%05d" % i: b"%d" % i for i in range(1000)}
    put(store, many)
    for reader in (store, store.snapshot()):
        assert dict(reader.scan(ROWS)) == many
        assert keys(reader, b"00100", b"00900") == [b"%05d" % i for i in range(100, 900)]
        assert keys(reader, b"00100", b"00900", reverse=True) == [b"%05d" % i for i in range(899, 99, -1)]


def test_scans_of_one_snapshot_do_not_disturb_each_other(store: Store) -> None:
    put(store, {b"%03d" % i: b"v" for i in range(300)})
    snapshot = store.snapshot()
    up, down = snapshot.scan(ROWS), snapshot.scan(ROWS, reverse=True)
    both = [(a[0], b[0]) for a, b in zip(up, down, strict=True)]
    assert both == [(b"%03d" % i, b"%03d" % (299 - i)) for i in range(300)]


def test_a_scan_outlives_the_name_of_its_snapshot(store: Store) -> None:
    put(store, {b"%03d" % i: b"old" for i in range(200)})
    rows = store.snapshot().scan(ROWS)
    batch = store.batch()
    batch.delete_range(ROWS, b"", b"\xff")
    store.write(batch)
    assert len(list(rows)) == 200


# --- batches ------------------------------------------------------------------------------------------------


def test_operations_of_a_batch_happen_in_their_order(store: Store) -> None:
    put(store, {b"a": b"0", b"b": b"0", b"c": b"0"})
    batch = store.batch()
    batch.put(ROWS, b"a", b"1")
    batch.put(ROWS, b"b", b"1")
    batch.delete_range(ROWS, b"a", b"c")
    batch.put(ROWS, b"b", b"2")
    batch.put(ROWS, b"d", b"2")
    batch.delete(ROWS, b"d")
    batch.delete(ROWS, b"e")
    batch.put(ROWS, b"e", b"2")
    assert len(batch) == 8
    store.write(batch)
    assert dict(store.scan(ROWS)) == {b"b": b"2", b"c": b"0", b"e": b"2"}


def test_a_range_that_is_empty_or_inverted_removes_nothing(store: Store) -> None:
    put(store, {b"a": b"1", b"b": b"2"})
    batch = store.batch()
    batch.delete_range(ROWS, b"b", b"a")
    batch.delete_range(ROWS, b"a", b"a")
    batch.delete_range(ROWS, b"", b"")
    assert len(batch) == 0
    store.write(batch)
    put(store, {b"c": b"3"})
    assert keys(store) == [b"a", b"b", b"c"]


def test_a_batch_that_is_not_written_changes_nothing(store: Store) -> None:
    store.batch().put(ROWS, b"a", b"1")
    assert keys(store) == []


def test_a_batch_is_written_once(store: Store) -> None:
    batch = store.batch()
    batch.put(ROWS, b"a", b"1")
    store.write(batch)
    uses: list[Callable[[], object]] = [
        lambda: store.write(batch),
        lambda: batch.put(ROWS, b"b", b"2"),
        lambda: batch.delete(ROWS, b"b"),
        lambda: len(batch),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="written once"):
            use()
    put(store, {b"c": b"3"})
    assert keys(store) == [b"a", b"c"]


def test_a_foreign_batch_is_refused(store: Store) -> None:
    with pytest.raises(TypeError, match="batch made by this store"):
        store.write(object())  # type: ignore[arg-type]


def test_an_empty_batch_is_fine(store: Store) -> None:
    store.write(store.batch())
    store.sync()
    assert keys(store) == []


# --- snapshots ----------------------------------------------------------------------------------------------


def test_a_snapshot_sees_its_moment_in_every_family(store: Store) -> None:
    for family in Family:
        put(store, {b"kept": b"old", b"gone": b"old"}, family)
    snapshot = store.snapshot()
    batch = store.batch()
    for family in Family:
        batch.put(family, b"kept", b"new")
        batch.put(family, b"added", b"new")
        batch.delete(family, b"gone")
    store.write(batch)
    for family in Family:
        assert list(snapshot.scan(family)) == [(b"gone", b"old"), (b"kept", b"old")]
        assert list(snapshot.scan(family, reverse=True)) == [(b"kept", b"old"), (b"gone", b"old")]
        assert snapshot.get(family, b"kept") == b"old"
        assert snapshot.get(family, b"added") is None
        assert snapshot.get_many(family, [b"gone", b"added"]) == [b"old", None]
        assert list(store.scan(family)) == [(b"added", b"new"), (b"kept", b"new")]


def test_a_scan_of_the_store_sees_the_moment_of_its_call(store: Store) -> None:
    put(store, {b"%03d" % i: b"old" for i in range(200)})
    rows = store.scan(ROWS)
    put(store, {b"%03d" % i: b"new" for i in range(300)})
    assert {value for _, value in rows} == {b"old"}


# --- threads ------------------------------------------------------------------------------------------------


def test_readers_never_see_half_a_batch(store: Store) -> None:
    """Two families move together; whoever reads meanwhile sees both or neither."""
    put(store, {b"n": b"0"}, ROWS)
    put(store, {b"n": b"0"}, LOG)
    done, wrong, seen = threading.Event(), [], set()

    def read() -> None:
        while True:
            last_round = done.is_set()
            snapshot = store.snapshot()
            pair = (snapshot.get(ROWS, b"n"), dict(snapshot.scan(LOG))[b"n"])
            seen.add(pair[0])
            if pair[0] != pair[1]:
                wrong.append(pair)
            if last_round:
                return

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 501):
        batch = store.batch()
        batch.put(ROWS, b"n", b"%d" % number)
        batch.put(LOG, b"n", b"%d" % number)
        store.write(batch)
        if number % 50 == 0:
            store.sync()
    done.set()
    reader.join()
    assert wrong == []
    assert b"500" in seen


def test_closing_under_scanning_threads_ends_them_with_an_error(kind: Kind) -> None:
    store = kind.open()
    put(store, {b"%05d" % i: b"v" * 100 for i in range(2000)})
    outcomes: list[type[BaseException]] = []
    scanning = threading.Barrier(5)

    def scan(reader: Reader) -> None:
        rows = reader.scan(ROWS)
        next(rows)
        scanning.wait()
        try:
            while True:
                for _ in rows:
                    pass
                rows = reader.scan(ROWS)
                reader.get_many(ROWS, [b"00001"] * 50)
        except Exception as error:
            outcomes.append(type(error))

    threads = [threading.Thread(target=scan, args=(r,)) for r in (store, store, store.snapshot(), store)]
    for thread in threads:
        thread.start()
    scanning.wait()
    store.close()
    for thread in threads:
        thread.join()
    assert outcomes == [DatabaseClosed] * 4
    again = kind.reopen(store)
    assert len(keys(again)) == 2000
    again.close()


# --- durability and closing ---------------------------------------------------------------------------------


def test_close_keeps_everything_written(kind: Kind) -> None:
    store = kind.open()
    put(store, {b"a": b"synced"})
    store.sync()
    put(store, {b"b": b"not synced"})
    store.close()
    again = kind.reopen(store)
    assert dict(again.scan(ROWS)) == {b"a": b"synced", b"b": b"not synced"}
    again.close()


def test_close_can_be_called_twice(kind: Kind) -> None:
    store = kind.open()
    store.close()
    store.close()


def test_after_close_every_call_says_so(kind: Kind, tmp_path: Path) -> None:
    store = kind.open()
    put(store, {b"a": b"1", b"b": b"2"})
    snapshot, batch, unread, half_read = store.snapshot(), store.batch(), store.scan(ROWS), store.scan(ROWS)
    next(half_read)
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.get(ROWS, b"a"),
        lambda: store.get_many(ROWS, [b"a"]),
        lambda: store.scan(ROWS),
        lambda: store.snapshot(),
        lambda: store.batch(),
        lambda: store.write(batch),
        lambda: store.sync(),
        lambda: store.checkpoint(str(tmp_path / "copy")),
        lambda: store.size_bytes(),
        lambda: store.staging(),
        lambda: store.ingest(ROWS, []),
        lambda: snapshot.get(ROWS, b"a"),
        lambda: snapshot.get_many(ROWS, [b"a"]),
        lambda: snapshot.scan(ROWS),
        lambda: batch.put(ROWS, b"c", b"3"),
        lambda: next(unread),
        lambda: next(half_read),
    ]
    for call in calls:
        with pytest.raises(DatabaseClosed):
            call()


def test_what_is_still_held_does_not_keep_the_store_open(kind: Kind) -> None:
    store = kind.open()
    put(store, {b"%03d" % i: b"v" for i in range(100)})
    held = [store.snapshot(), store.snapshot().scan(ROWS), store.scan(ROWS), store.batch()]
    next(held[1])
    store.close()
    again = kind.reopen(store)
    assert len(keys(again)) == 100
    again.close()


# --- sorted files -------------------------------------------------------------------------------------------


WRITTEN: dict[str, list[tuple[bytes, bytes]]] = {}  # for stores that are told what a file holds


def sorted_file(store: Store, name: str, entries: dict[bytes, bytes]) -> str:
    path = Path(store.staging(), name)
    path.unlink(missing_ok=True)
    ordered = sorted(entries)
    write_sst(path, ordered, [entries[key] for key in ordered])
    WRITTEN[str(path)] = [(key, entries[key]) for key in ordered]
    return str(path)


def test_files_are_taken_in_together_and_win_over_what_was_there(store: Store) -> None:
    put(store, {b"a": b"old", b"c": b"old", b"x": b"old"})
    store.sync()
    paths = [sorted_file(store, "1", {b"a": b"1", b"d": b"1"}), sorted_file(store, "2", {b"b": b"2", b"c": b"2"})]
    store.ingest(ROWS, paths)
    assert dict(store.scan(ROWS)) == {b"a": b"1", b"b": b"2", b"c": b"2", b"d": b"1", b"x": b"old"}
    assert list(store.scan(LOG)) == []
    assert [Path(path).exists() for path in paths] == [True, True]


def test_a_compaction_drops_nothing_of_the_first_files(tmp_path: Path) -> None:
    """Taken into a database that was never written to, with a snapshot from before anything else."""
    store = RocksStore.open(str(tmp_path / "db"))
    store.ingest(ROWS, [sorted_file(store, "1", {b"a": b"1", b"z": b"1"})])
    snapshot = store.snapshot()
    store.ingest(ROWS, [sorted_file(store, "2", {b"b": b"2", b"y": b"2"})])
    store._families[ROWS].compact_range(b"", b"\xff")
    assert dict(store.scan(ROWS)) == {b"a": b"1", b"b": b"2", b"y": b"2", b"z": b"1"}
    assert dict(snapshot.scan(ROWS)) == {b"a": b"1", b"z": b"1"}
    store.close()


def test_what_is_written_later_wins_over_a_file(store: Store) -> None:
    store.ingest(ROWS, [sorted_file(store, "1", {b"a": b"1", b"b": b"1", b"c": b"1", b"d": b"1"})])
    batch = store.batch()
    batch.put(ROWS, b"a", b"new")
    batch.delete(ROWS, b"b")
    batch.delete_range(ROWS, b"c", b"d")
    store.write(batch)
    assert dict(store.scan(ROWS)) == {b"a": b"new", b"d": b"1"}


def test_an_older_snapshot_does_not_see_a_file(store: Store) -> None:
    put(store, {b"a": b"old"})
    store.sync()
    snapshot, scan = store.snapshot(), store.scan(ROWS)
    store.ingest(ROWS, [sorted_file(store, "1", {b"a": b"1", b"b": b"1"})])
    assert dict(snapshot.scan(ROWS)) == dict(scan) == {b"a": b"old"}
    assert snapshot.get_many(ROWS, [b"a", b"b"]) == [b"old", None]
    assert dict(store.snapshot().scan(ROWS)) == {b"a": b"1", b"b": b"1"}


def test_taking_a_file_in_again_changes_nothing(kind: Kind) -> None:
    store = kind.open()
    put(store, {b"a": b"old"})
    store.sync()
    path = sorted_file(store, "1", {b"a": b"1", b"b": b"1"})
    for _ in range(2):
        store.ingest(ROWS, [path])
    store.close()
    store = kind.reopen(store)
    store.ingest(ROWS, [path])
    assert dict(store.scan(ROWS)) == {b"a": b"1", b"b": b"1"}
    store.close()


def test_a_file_knows_its_bounds_and_what_is_none_is_refused(store: Store) -> None:
    path = sorted_file(store, "1", {b"": b"1", b"m": b"1", b"\xff\xff": b"1"})
    assert store.bounds(path) == (b"", b"\xff\xff")
    Path(path).write_bytes(b"neither keys nor values " * 100)
    with pytest.raises(CorruptData):
        store.bounds(path)
    with pytest.raises((CorruptData, StorageFailure)):
        store.bounds(path + "-that-is-not-there")


def test_staging_is_no_part_of_a_checkpoint(kind: Kind, store: Store, tmp_path: Path) -> None:
    path = sorted_file(store, "1", {b"a": b"1"})
    store.ingest(ROWS, [path])
    store.checkpoint(str(tmp_path / "copy"))
    copy = kind.restore(str(tmp_path / "copy"))
    assert dict(copy.scan(ROWS)) == {b"a": b"1"}
    assert list(Path(copy.staging()).iterdir()) == []
    copy.close()


# --- checkpoints and size -----------------------------------------------------------------------------------


def test_a_checkpoint_is_a_store_of_its_own(kind: Kind, store: Store, tmp_path: Path) -> None:
    for family in Family:
        put(store, {b"k": family.value.encode()}, family)
    store.checkpoint(str(tmp_path / "copy"))
    put(store, {b"later": b"1"})
    copy = kind.restore(str(tmp_path / "copy"))
    assert {f: dict(copy.scan(f)) for f in Family} == {f: {b"k": f.value.encode()} for f in Family}
    put(copy, {b"only in the copy": b"1"})
    assert keys(store) == [b"k", b"later"]
    copy.close()


def test_a_checkpoint_needs_a_free_place(store: Store, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(BackupError, match="taken"):
        store.checkpoint(str(taken))
    assert list(taken.iterdir()) == []


def test_size_follows_the_data(store: Store) -> None:
    before = store.size_bytes()
    put(store, {b"k": b"v" * 2_000_000})
    assert store.size_bytes() >= before + 2_000_000


# --- against a model ----------------------------------------------------------------------------------------

Model = dict[Family, dict[bytes, bytes]]

FAMILIES = st.sampled_from([ROWS, LOG])
KEYS = st.lists(st.sampled_from([0, 97, 255]), max_size=3).map(bytes)
VALUES = st.one_of(st.binary(max_size=4), st.just(b"x" * 5000))
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), FAMILIES, KEYS, VALUES),
    st.tuples(st.just("delete"), FAMILIES, KEYS),
    st.tuples(st.just("delete_range"), FAMILIES, KEYS, KEYS),
)


def apply(model: Model, operation: tuple[Any, ...]) -> None:
    match operation:
        case ("put", family, key, value):
            model[family][key] = value
        case ("delete", family, key):
            model[family].pop(key, None)
        case ("delete_range", family, start, end):
            model[family] = {k: v for k, v in model[family].items() if not start <= k < end}


def expected(model: Model, family: Family, start: bytes, end: bytes | None, how: str) -> list[tuple[bytes, bytes]]:
    entries = model[family]
    if how == "floor":
        start = max((k for k in entries if k <= start), default=start)
    found = sorted((k, v) for k, v in entries.items() if start <= k and (end is None or k < end))
    return found[::-1] if how == "reverse" else found


def check(reader: Reader, model: Model, family: Family, start: bytes, end: bytes | None, how: str) -> None:
    flags = {} if how == "up" else {how: True}
    assert list(reader.scan(family, start, end, **flags)) == expected(model, family, start, end, how)
    asked = [start, end or b"", start]
    assert reader.get_many(family, asked) == [model[family].get(key) for key in asked]
    assert reader.get(family, start) == model[family].get(start)


def copied(model: Model) -> Model:
    return {family: dict(entries) for family, entries in model.items()}


class StoreMachine(RuleBasedStateMachine):
    """Batches, syncs, snapshots, reopening and crashing, in any order; a dict says what must be found."""

    snapshots = Bundle("snapshots")

    def open(self) -> None:
        raise NotImplementedError

    def after_crash(self) -> None:
        """Sets `store` to what is found after a crash, and `model` to what must be."""
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.model: Model = {family: {} for family in Family}
        self.durable = copied(self.model)
        self.store: Any = None
        self.opened = 0
        self.directory = Path(tempfile.mkdtemp())
        self.open()

    @rule(operations=st.lists(OPERATIONS, max_size=12))
    def write(self, operations: list[tuple[Any, ...]]) -> None:
        batch = self.store.batch()
        for operation in operations:
            getattr(batch, operation[0])(*operation[1:])
            apply(self.model, operation)
        self.store.write(batch)

    @rule()
    def sync(self) -> None:
        self.store.sync()
        self.durable = copied(self.model)

    @rule(
        family=FAMILIES, files=st.lists(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4), min_size=1, max_size=3)
    )
    def ingest(self, family: Family, files: list[dict[bytes, bytes]]) -> None:
        seen: set[bytes] = set()
        paths = []
        self.sync()
        for number, entries in enumerate(files):
            own = {key: value for key, value in entries.items() if key not in seen}
            seen |= own.keys()
            if own:
                paths.append(sorted_file(self.store, str(number), own))
                self.model[family].update(own)
        self.store.ingest(family, paths)
        self.durable = copied(self.model)

    @rule(target=snapshots)
    def snapshot(self) -> tuple[int, Reader, Model]:
        return self.opened, self.store.snapshot(), copied(self.model)

    @rule(
        taken=snapshots,
        family=FAMILIES,
        start=KEYS,
        end=st.none() | KEYS,
        how=st.sampled_from(["up", "reverse", "floor"]),
    )
    def read_snapshot(
        self, taken: tuple[int, Reader, Model], family: Family, start: bytes, end: bytes | None, how: str
    ) -> None:
        opened, snapshot, model = taken
        if opened == self.opened:
            check(snapshot, model, family, start, end, how)
        else:
            with pytest.raises(DatabaseClosed):
                snapshot.get(family, start)

    @rule(taken=consumes(snapshots))
    def drop_snapshot(self, taken: tuple[int, Reader, Model]) -> None:
        """It is forgotten; what it pinned is free."""

    @rule(family=FAMILIES, start=KEYS, end=st.none() | KEYS, how=st.sampled_from(["up", "reverse", "floor"]))
    def read(self, family: Family, start: bytes, end: bytes | None, how: str) -> None:
        check(self.store, self.model, family, start, end, how)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.durable = copied(self.model)
        self.opened += 1
        self.open()

    @rule()
    def crash(self) -> None:
        self.opened += 1
        self.after_crash()

    @invariant()
    def everything_is_there(self) -> None:
        for family, entries in self.model.items():
            assert dict(self.store.scan(family)) == entries

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.store.close()
            shutil.rmtree(self.directory)


COPY_SECONDS = 60.0  # nobody writes meanwhile, so compactions come to an end


def copy_at_one_moment(source: Path, target: Path) -> None:
    """A process dies at one moment; a copy takes longer. One during which no file changed is as good."""
    deadline = time.monotonic() + COPY_SECONDS
    while time.monotonic() < deadline:
        try:
            before = files(source)
            shutil.copytree(source, target)
            if files(source) == before:
                return
        except (shutil.Error, FileNotFoundError):
            pass  # a compaction has just removed what it replaced
        shutil.rmtree(target, ignore_errors=True)
    raise TimeoutError(f"{source} did not come to rest within {COPY_SECONDS:.0f} s")


def files(directory: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.rglob("*") if path.is_file()}


class RocksMachine(StoreMachine):
    """A crash is the process dying: what was written is with the operating system and survives."""

    def open(self) -> None:
        self.store = RocksStore.open(str(self.directory / "db"))

    def after_crash(self) -> None:
        copy_at_one_moment(self.directory / "db", self.directory / "found")
        self.store.close()
        shutil.rmtree(self.directory / "db")
        (self.directory / "found").rename(self.directory / "db")
        self.open()


class MemoryMachine(StoreMachine):
    """A crash is the machine dying: only what was synced survives."""

    def open(self) -> None:
        self.store = self.store.crash() if self.store else MemoryStore(WRITTEN.__getitem__)

    def after_crash(self) -> None:
        self.open()
        self.model = copied(self.durable)


RocksMachine.TestCase.settings = settings(max_examples=6, stateful_step_count=20, deadline=None)
MemoryMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

TestRocksAgainstModel = RocksMachine.TestCase
TestMemoryAgainstModel = MemoryMachine.TestCase
