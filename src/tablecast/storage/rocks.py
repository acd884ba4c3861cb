"""The store on disk: RocksDB, one column family per `Family`, one write-ahead log (WAL) for all of them.

**Writing.** `write` appends to the WAL (operating system's buffer) and the memtables; `sync` is
`flush_wal(True)`, the fsync, which releases the GIL. A write with its own `sync=True` keeps the GIL for the
whole fsync and is never used. Ahead of small commits the log has zeros, over which RocksDB writes: an fsync then
waits for less (`zeros_ahead.py`).

**Recovery never loses acknowledged data in silence.** What RocksDB's modes do when the WAL is damaged
(measured):

    damage                             absolute   tolerate-tail   point-in-time   skip-any
    tail cut inside a record           refuses    opens           opens           opens
    flipped bit in the middle          refuses    refuses         opens, cut!     opens, holes!
    flipped bit in the last record     refuses    refuses         opens, cut!     opens, cut!
    flipped length in the last 32 KiB  refuses    opens, cut!     opens, cut!     opens, cut!
    cut between records, or WAL gone   opens      opens           opens           opens
    last record torn, zeros behind it  refuses    refuses         opens           opens
    zeros for a block's last records   opens, holes! in every mode

So we open with *absolute* consistency. If that refuses, the tail may have been torn by a power cut, which is
harmless if it was never acknowledged: a read-only look with *tolerate-tail* tells how far the log reaches,
the watermark (`home.py`) how far it must. Only when it reaches far enough is the store opened that way. The
watermark also catches the flipped length and what is cut or gone, which that mode cannot judge. What is left: a
watermark that was itself not yet on disk when the machine, not just the process, died. A last record that is whole
but fails its checksum is refused: it may have been acknowledged.

Where zeros were ahead of it, a torn record is one that misses sectors. `wal_tail.py` tells it from damage; if a copy
of the log without it opens, and reaches the watermark, it is cut off. Zeros in the midst of a log are looked for before
RocksDB gets to see it: 12 ms for 10 MiB.

**Tuning.** For a server beside other work, not for a machine of its own.

- WAL of 12 MiB: replaying it is most of opening after a crash. Killed and opened again with 10 thousand and
  with 1 million messages (5 and 500 MB), the second takes less than twice as long as the first; with 32 MiB
  it took 4.7 times as long, for 3 % fewer bytes written.
- Memory is bounded, whatever was ever written: 64 MiB block cache for all families, 32 MiB of memtables in all, 512 open
  files. Indexes and filters are blocks of the cache: outside of it they would grow with the data. What an open file takes
  beside them is little (0.2 MiB for 80 of them). The cache is full after some 300,000 rows with all kinds of readers; that
  the process does not grow on by holes where blocks were is up to the allocator (`tablecast.server.allocator`).
- Ten bloom bits per key, and a bloom filter over the memtables, because an insert first asks for a key that
  is mostly not there; in pieces, as `sst.py` tells. 16 KiB blocks; LZ4, and ZSTD at the bottom where most bytes rest.
- LOG is tuned like the others. Its values are large, appended in key order and removed by range: leveled
  compaction moves such files without rewriting them. Blob files and universal compaction wrote no fewer bytes
  (819, 821, leveled 804 MB for a million messages), and blob files gave space back later after a range was
  removed.
- Files whose ranges overlap gather on level 0 until they are merged. RocksDB stops writes at 36 of them, in a call that
  keeps the GIL: a load of 100 parts that interleave stood the whole process still for 1.8 s. The limits are far higher
  here; merging begins at 4 files as ever, and until it is done a read asks more bloom filters.
- RocksDB's own text logs: 3 files of 1 MiB at most. A MANIFEST is rewritten at 16 MiB. WAL files are not
  recycled: old content in them could not be told from damage.

**Reading** goes through native iterators (`RdictIter`), one per scan, and for a snapshot one per family, made
with it and shared by its scans. Four traits of rocksdict 0.3.29 make it so: iterators made from a native
snapshot ignore it (only its `[]` is right); `items()` ends at a corrupt block as if the data ended there,
while an `RdictIter` can be asked for its status; the lower bound of ReadOptions sets the upper one; and
bounds point into bytes that may be freed.

**Ingesting** links files into RocksDB; nothing is copied and nothing of the original is written (measured: its bytes
stay, so that it can be taken in again). Files of one call appear together, in one edit of the MANIFEST, which is
synced. While a snapshot is open, and the published one always is, they get a sequence number of their own and older
snapshots do not see them. A file whose range meets the memtable makes RocksDB flush it, keeping the GIL: `ingest`
flushes before, without it. Into a database that was never written to, files come with sequence number 0; a compaction
then drops what is in them if a snapshot was taken at 0 (measured). So no database is left at 0 when it is opened.

**Closing.** An iterator, a snapshot or a column-family handle keeps RocksDB open, and locked. `close`
therefore empties the tables through which every call goes (`PerFamily`) and takes every iterator and snapshot
away from its owner; what is called afterwards raises `DatabaseClosed`. No native object is freed under a
running call: rocksdict keeps the GIL in all of them but `flush_wal`, and that one is under our `_syncing`
lock.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn, Self

from rocksdict import (
    AccessType,
    Cache,
    Checkpoint,
    ColumnFamily,
    DBCompressionType,
    DBRecoveryMode,
    IngestExternalFileOptions,
    Options,
    Rdict,
    WriteBatch,
)

from tablecast.errors import BackupError, CorruptData, DatabaseLocked, DiskFull, TablecastError
from tablecast.storage.base import Batch, Family, StorageFailure
from tablecast.storage.home import PARTIAL, STAGING, STORE, Home, Watermark, cut_durably, sync_directory, sync_tree
from tablecast.storage.private import make_private, narrow
from tablecast.storage.reserve import LITTLE_BYTES, Reserve, is_full
from tablecast.storage.sst import file_layout
from tablecast.storage.view import PerFamily, Row, Scan, View, closed_error, explained
from tablecast.storage.wal_tail import log_files, passes_over_something, torn_at
from tablecast.storage.zeros_ahead import ZerosAhead

_MIB = 1 << 20
_WAL_BYTES = 12 * _MIB  # replaying it is most of opening
_MEMTABLES_BYTES = 32 * _MIB  # what the log holds, of every family, and as much that is being written out
_BLOCK_CACHE_BYTES = 64 * _MIB  # what readers are at, and the indexes and filters of some hundred files
_OPEN_FILES = 512  # half of what a process may usually have
_MEMTABLE_BLOOM_SHARE = 0.02
_FILES_BEFORE_SLOWING = 1024  # on level 0
_FILES_BEFORE_STOPPING = 4096

# How many entries a scan fetches at once, at most. A value of LOG is itself a batch of messages, hundreds of
# kilobytes; one of CHANGES may be.
_AHEAD = {family: {Family.LOG: 1, Family.CHANGES: 8}.get(family, 64) for family in Family}

_LOOK = "look-"  # copies of logs that are looked at without their end
_SHUTTING_DOWN = "Shutdown in progress"  # how a flush is refused when RocksDB ends
_NO_SUCH_KEY = "key not found"  # all that tells a missing key from trouble when a native snapshot is read

_SIZE_PROPERTIES = ("rocksdb.total-sst-files-size", "rocksdb.cur-size-all-mem-tables")


# --- options ------------------------------------------------------------------------------------------------


def _family_options(cache: Cache) -> Options:
    blocks = file_layout()
    blocks.set_block_cache(cache)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    blocks.set_pin_top_level_index_and_filter(True)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_memtable_prefix_bloom_ratio(_MEMTABLE_BLOOM_SHARE)
    options.set_memtable_whole_key_filtering(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    options.set_write_buffer_size(_WAL_BYTES)
    options.set_max_write_buffer_number(4)
    options.set_level_zero_slowdown_writes_trigger(_FILES_BEFORE_SLOWING)
    options.set_level_zero_stop_writes_trigger(_FILES_BEFORE_STOPPING)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_target_file_size_base(32 * _MIB)
    options.set_max_bytes_for_level_base(128 * _MIB)
    return options


def _options(cache: Cache, mode: DBRecoveryMode, *, create: bool) -> Options:
    options = _family_options(cache)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(mode)
    options.set_recycle_log_file_num(0)
    options.set_max_total_wal_size(_WAL_BYTES)
    options.set_db_write_buffer_size(_MEMTABLES_BYTES)
    options.set_max_open_files(_OPEN_FILES)
    options.set_max_background_jobs(2)
    options.set_bytes_per_sync(_MIB)  # background files reach the disk steadily, not in a burst ahead of a WAL fsync
    options.set_max_manifest_file_size(16 * _MIB)
    options.set_skip_stats_update_on_db_open(True)
    options.set_keep_log_file_num(3)
    options.set_max_log_file_size(_MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


# --- opening ------------------------------------------------------------------------------------------------


# The format that brought a family; the others were there from the first.
_SINCE = {Family.CHANGES: 3, Family.VERSIONS: 3, Family.BUCKETS: 3}
_ALL = [family.value for family in Family]


def _open_native(
    path: Path,
    cache: Cache,
    mode: DBRecoveryMode,
    families: list[str],
    *,
    create: bool = False,
    read_only: bool = False,
    logs: Path | None = None,
) -> Rdict:
    options = _options(cache, mode, create=create)
    if logs is not None:  # elsewhere than the data
        options.set_wal_dir(str(logs))
    access = AccessType.read_only(error_if_log_file_exist=False) if read_only else AccessType.read_write()
    return Rdict(str(path), options, {name: _family_options(cache) for name in families}, access)


def _families_at(home: Home) -> list[str]:
    """Those that a database of its format must have, and those that an interrupted upgrade has added already.

    Not simply those that RocksDB lists: a damaged MANIFEST may list fewer, and opened without them, and with new ones in
    their place, the database would look empty.
    """
    expected = [family.value for family in Family if _SINCE.get(family, 1) <= home.format]
    if len(expected) == len(_ALL):
        return expected
    added = set(Rdict.list_cf(str(home.store), Options(raw_mode=True)))
    return [name for name in _ALL if name in expected or name in added]


def _create(home: Home) -> Rdict:
    """Makes the store; the marker says that it is complete only when it is."""
    try:
        cache = Cache(_BLOCK_CACHE_BYTES)
        native = _open_native(home.store, cache, DBRecoveryMode.absolute_consistency(), _ALL, create=True)
    except Exception as error:
        refusal = _refusal(error, home.path)
        if not isinstance(refusal, DatabaseLocked):  # then another process is just creating it
            home.abandon()
        raise refusal from error
    try:
        _leave_zero(native)
        Watermark.write(home.path, 0)
        home.finish()
    except Exception as error:
        native.close()
        home.abandon()
        raise _refusal(error, home.path) from error
    return native


def _open(home: Home) -> Rdict:
    acknowledged = Watermark.read(home.path)
    cache = Cache(_BLOCK_CACHE_BYTES)
    try:
        families = _families_at(home)
        native = _recover(home.store, cache, families, acknowledged)
    except TablecastError:
        raise
    except Exception as error:
        raise _refusal(error, home.path) from error
    try:
        for name in _ALL:
            if name not in families:  # the tablecast that made this database did not have it yet
                native.create_column_family(name, _family_options(cache))
        home.raise_format()
        _leave_zero(native)
        for left in home.path.glob(f"{_LOOK}*{PARTIAL}"):  # by a process that died while it looked
            shutil.rmtree(left, ignore_errors=True)
    except Exception as error:
        native.close()
        raise _refusal(error, home.path) from error
    return native


def _open_with(reserve: Reserve, home: Home) -> Rdict:
    """On a full disk, with the space of the reserve."""
    if reserve.free_bytes() < LITTLE_BYTES:
        reserve.give_up()
    try:
        return _open(home)
    except StorageFailure as error:
        if not is_full(error):
            raise
        if not reserve.give_up():
            raise _no_room(home, reserve) from error
    try:
        return _open(home)
    except StorageFailure as error:
        raise (_no_room(home, reserve) if is_full(error) else error) from error


def _data_bytes(store: Path) -> int:
    """Of the files that hold data: sorted files and logs. RocksDB may remove one meanwhile."""
    total = 0
    for entry in os.scandir(store):
        with suppress(FileNotFoundError):
            total += entry.stat().st_size if entry.name.endswith((".sst", ".log")) else 0
    return total


def _no_room(home: Home, reserve: Reserve) -> DiskFull:
    text = f"{home.path} cannot be opened: its disk is full, {reserve.free_bytes() >> 10:,} KiB are free; make room, up to 128 MiB"
    return DiskFull(text, path=str(home.path))


def _leave_zero(native: Rdict) -> None:
    """No snapshot may have sequence number 0; see "Ingesting" above."""
    if native.latest_sequence_number() == 0:
        batch = WriteBatch(raw_mode=True)
        batch.delete(b"", native.get_column_family_handle(Family.META.value))  # counts, and leaves nothing
        native.write(batch)


def _recover(path: Path, cache: Cache, families: list[str], acknowledged: int) -> Rdict:
    """Opens what is there; see "Recovery" above."""
    absolute, tolerant = DBRecoveryMode.absolute_consistency(), DBRecoveryMode.tolerate_corrupted_tail_records()
    logs = log_files(path)
    try:
        _require_nothing_passed_over(path, cache)
        native = _open_native(path, cache, absolute, families)
    except Exception as error:
        if not isinstance(error, CorruptData) and not str(error).startswith("Corruption"):
            raise
        if _is_torn_tail_cut(path, logs, cache, families, acknowledged):
            native = _open_native(path, cache, absolute, families)
        elif isinstance(error, CorruptData):
            raise  # RocksDB would pass it over in either mode
        else:
            _require_harmless_tail(path, cache, families, acknowledged, error)
            native = _open_native(path, cache, tolerant, families)
    _require_acknowledged(path, native, acknowledged)
    return native


def _read_logs(path: Path) -> dict[Path, bytes]:
    """Oldest first. One that is gone meanwhile was removed by a process that has the database open."""
    found = {}
    for log in log_files(path):
        with suppress(FileNotFoundError):
            found[log] = log.read_bytes()
    return found


def _require_nothing_passed_over(path: Path, cache: Cache) -> None:
    if any(map(passes_over_something, _read_logs(path).values())):
        _require_unlocked(path, cache)  # a log that grows while it is read may look like that
        for log, content in _read_logs(path).items():
            if passes_over_something(content):
                raise CorruptData(f"{log} goes on behind a gap of zeros, where writes were lost", path=str(path))


def _require_unlocked(path: Path, cache: Cache) -> None:
    """Raises what RocksDB says if somebody has it open. It locks first, and only then finds that there is something."""
    options = _options(cache, DBRecoveryMode.absolute_consistency(), create=False)
    options.set_error_if_exists(True)
    try:
        Rdict(str(path), options).close()
    except Exception as error:
        if isinstance(_refusal(error, path), DatabaseLocked):
            raise


def _is_torn_tail_cut(path: Path, known: list[Path], cache: Cache, families: list[str], acknowledged: int) -> bool:
    """Cuts a torn record off the last log, if that is all that is wrong: then what is left opens, with all that must be there.

    A copy is cut first, and looked at, so that nothing is changed before that is certain. Nobody writes to these logs: they
    were there before RocksDB had the lock and refused them, and whoever opens a database begins a log of his own.
    """
    logs = _read_logs(path)
    last = next((log for log in reversed(logs) if logs[log].strip(b"\0")), None)
    at = None if last is None else torn_at(logs[last])
    if last is None or at is None or list(logs) != known:
        return False
    if any(passes_over_something(content) for log, content in logs.items() if log != last):
        return False  # the look would not tell
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=_LOOK, suffix=PARTIAL) as scratch:
        for log, content in logs.items():
            Path(scratch, log.name).write_bytes(content[:at] if log == last else content)
        mode = DBRecoveryMode.absolute_consistency()
        try:
            look = _open_native(path, cache, mode, families, read_only=True, logs=Path(scratch))
        except Exception:
            return False  # more than the tail is damaged
        _require_acknowledged(path, look, acknowledged)
        look.close()
    cut_durably(last, at)
    return True


def _require_harmless_tail(path: Path, cache: Cache, families: list[str], acknowledged: int, error: Exception) -> None:
    try:
        look = _open_native(path, cache, DBRecoveryMode.tolerate_corrupted_tail_records(), families, read_only=True)
    except Exception:
        raise error from None  # more than the tail is damaged: the first report stands
    _require_acknowledged(path, look, acknowledged)
    look.close()


def _require_acknowledged(path: Path, native: Rdict, acknowledged: int) -> None:
    reached = native.latest_sequence_number()
    if reached < acknowledged:
        native.close()
        raise CorruptData(
            f"{path} ends at sequence {reached}, but {acknowledged} was acknowledged as durable: its "
            f"write-ahead log was cut short; restore a backup",
            path=str(path),
            reached=reached,
            acknowledged=acknowledged,
        )


def _refusal(error: Exception, path: Path) -> Exception:
    """Why RocksDB did not open, in our words."""
    text = str(error)
    if "lock hold by current process" in text:
        return DatabaseLocked(f"{path} is already open in this process; close it first", path=str(path))
    if "While lock file" in text:
        return DatabaseLocked(f"{path} is open in another process; only one may have it open", path=str(path))
    if text.startswith("IO error") or isinstance(error, OSError):
        return StorageFailure(f"{path} cannot be opened: {text}", path=str(path))
    return CorruptData(f"{path} cannot be opened: {text}", path=str(path))


# --- reading ------------------------------------------------------------------------------------------------


class RocksSnapshot:
    """Every family at one moment; why getting and scanning differ is told in "Reading" above."""

    def __init__(
        self, path: Path, gets: Mapping[Family, Callable[[bytes], bytes]], views: Mapping[Family, View]
    ) -> None:
        self._path = path
        self._gets = PerFamily(path, gets)
        self._views = PerFamily(path, views)

    def get(self, family: Family, key: bytes) -> bytes | None:
        try:
            return self._gets[family](key)
        except TablecastError:
            raise
        except Exception as error:
            if error.args[0] == _NO_SUCH_KEY:
                return None
            raise explained(error, self._path, not self._gets) from error

    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(family, key) for key in keys]

    def scan(
        self,
        family: Family,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        reverse: bool = False,
        floor: bool = False,
    ) -> Iterator[Row]:
        return Scan(self._views[family], start, end, reverse, floor, owner=self).rows(_AHEAD[family])

    def drop(self) -> None:
        self._gets.clear()
        for view in self._views.values():
            view.drop()
        self._views.clear()


# --- writing ------------------------------------------------------------------------------------------------


Spans = dict[tuple[Family, bytes], tuple[bytes, bytes]]  # by what keys begin with: a table's id, or a topic's
_PLACE_BYTES = 4


class RocksBatch:
    """Operations go straight into the native batch: collecting them first costs a third more per row."""

    __slots__ = ("_handles", "_put", "_removed", "native")

    def __init__(self, handles: PerFamily[ColumnFamily], removed: Spans | None = None) -> None:
        self._handles = handles
        self._removed = removed
        self.native: WriteBatch | None = WriteBatch(raw_mode=True)
        self._put: Callable[[bytes, bytes, ColumnFamily], None] = self.native.put

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self._put(key, value, self._handles[family])

    def put_many(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        # Set by item, with the family told once: 0.05 µs each, against 0.08 for a call that is given all three.
        native = self._unwritten()
        native.set_default_column_family(self._handles[family])
        try:
            for key, value in zip(keys, values, strict=True):
                native[key] = value
        finally:
            native.set_default_column_family(None)  # a handle keeps RocksDB open

    def delete(self, family: Family, key: bytes) -> None:
        self._unwritten().delete(key, self._handles[family])
        if self._removed is not None:
            self._note(self._removed, family, key, key + b"\0")

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        # RocksDB takes an inverted range into its log, fails to apply it and from then on fails for good.
        if start < end:
            self._unwritten().delete_range(start, end, self._handles[family])
            if self._removed is not None:
                self._note(self._removed, family, start, end)

    @staticmethod
    def _note(removed: Spans, family: Family, start: bytes, end: bytes) -> None:
        place = family, start[:_PLACE_BYTES]
        low, high = removed.get(place, (start, end))
        removed[place] = min(low, start), max(high, end)

    def __len__(self) -> int:
        return len(self._unwritten())

    def consume(self) -> WriteBatch:
        native, self.native = self._unwritten(), None
        self._put = _already_written
        return native

    def _unwritten(self) -> WriteBatch:
        if self.native is None:
            _already_written()
        return self.native


def _already_written(*operation: object) -> NoReturn:
    raise ValueError("this batch was written; a batch is written once")


# --- sorted files ---------------------------------------------------------------------------------------------


_LINK = ".link"  # RocksDB takes this name away from the file; its first name stays


def _ingest(native: Rdict, paths: Sequence[str]) -> None:
    options = IngestExternalFileOptions()
    options.set_move_files(True)
    links = [path + _LINK for path in paths]
    try:
        for path, link in zip(paths, links, strict=True):
            Path(link).unlink(missing_ok=True)  # of a process that died here
            os.link(path, link)
        native.ingest_external_file(links, options)
    finally:
        for link in links:
            Path(link).unlink(missing_ok=True)


@contextmanager
def _taken_in(path: str) -> Iterator[Rdict]:
    """A scratch store, beside the file, that has taken in nothing else."""
    directory = tempfile.mkdtemp(dir=Path(path).parent, prefix=Path(path).name + ".", suffix=".scratch")
    try:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        native = Rdict(directory, options)
        try:
            _ingest(native, [path])
            yield native
        finally:
            native.close()
    except TablecastError:
        raise
    except Exception as error:
        kind = StorageFailure if isinstance(error, OSError) else CorruptData
        raise kind(f"{path} is not a sorted file that can be taken in: {error}", path=path) from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _bounds(path: str) -> tuple[bytes, bytes]:
    with _taken_in(path) as native:
        at = native.iter()
        at.seek_to_first()
        first = at.key()
        at.seek_to_last()
        last = at.key()
        at.status()
        del at
    if first is None or last is None:
        raise CorruptData(f"{path} is a sorted file without entries", path=path)
    return first, last


def read_sorted(path: str) -> list[Row]:
    """Every entry of a sorted file: for stores that have no files of their own."""
    with _taken_in(path) as native:
        at = native.iter()
        at.seek_to_first()
        found: list[Row] = []
        while (key := at.key()) is not None:
            found.append((key, at.value()))
            at.next()
        at.status()
        del at
    return found


# --- the store ----------------------------------------------------------------------------------------------


class RocksStore:
    """See `tablecast.storage.base.Store` for the contract."""

    def __init__(self, path: Path, root: Rdict, watermark: Watermark, reserve: Reserve) -> None:
        self._path = path
        self._reserve = reserve
        self._removed: Spans = {}  # what was removed while the reserve is missing
        self._root = root
        self._watermark = watermark
        self._families = PerFamily(path, {f: root.get_column_family(f.value) for f in Family})
        self._gets = PerFamily(path, {f: native.get for f, native in self._families.items()})
        self._handles = PerFamily(path, {f: root.get_column_family_handle(f.value) for f in Family})
        self._readers: weakref.WeakSet[View | RocksSnapshot] = weakref.WeakSet()
        self._failure: StorageFailure | None = None
        self._ahead = ZerosAhead(path / STORE)
        self._writing = threading.Lock()  # short: a write, or the making of a view or snapshot between writes
        self._syncing = threading.Lock()  # long: a sync or checkpoint, which close must not overtake

    @classmethod
    def open(cls, path: str, *, create: bool = True) -> Self:
        """Opens the database at `path`, or makes one where there is nothing yet.

        Raises NotADatabase, DatabaseLocked, FormatTooNew, CorruptData or StorageFailure; what was at `path`
        is then as it was before.
        """
        home = Home(path)
        reserve = Reserve(home.path)
        root = _create(home) if home.settle(create=create) else _open_with(reserve, home)
        store = cls(home.path, root, Watermark(home.path), reserve)
        reserve.keep(_data_bytes(home.store))
        return store

    # reading

    def get(self, family: Family, key: bytes) -> bytes | None:
        try:
            return self._gets[family](key)
        except TablecastError:
            raise
        except Exception as error:
            raise explained(error, self._path, not self._gets) from error

    def get_many(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        get = self._gets[family]
        try:
            return [get(key) for key in keys]
        except Exception as error:
            raise explained(error, self._path, not self._gets) from error

    def scan(
        self,
        family: Family,
        start: bytes = b"",
        end: bytes | None = None,
        *,
        reverse: bool = False,
        floor: bool = False,
    ) -> Iterator[Row]:
        with self._writing:
            view = View(self._path, self._families[family].iter())
            self._readers.add(view)
        return Scan(view, start, end, reverse, floor).rows(_AHEAD[family])

    def snapshot(self, *families: Family) -> RocksSnapshot:
        # One native snapshot and one iterator per family: that no write comes between makes them one moment.
        with self._writing:
            self._require_open()
            natives = [(family, self._families[family]) for family in families or Family]
            views = {family: View(self._path, native.iter()) for family, native in natives}
            gets = {family: native.snapshot().__getitem__ for family, native in natives}
            snapshot = RocksSnapshot(self._path, gets, views)
            self._readers.add(snapshot)
        return snapshot

    def size_bytes(self) -> int:
        self._require_open()
        return sum(
            native.property_int_value(name) or 0 for native in self._families.values() for name in _SIZE_PROPERTIES
        )

    # a full disk

    def require_room(self) -> None:
        self._reserve.require()

    def reclaim(self) -> None:
        for (family, _), (start, end) in list(self._removed.items()):
            with self._syncing:
                self._require_writable()
                native = self._families[family]
                with suppress(Exception):  # no room even for this: there will be more to remove
                    native.flush()
                    native.compact_range(start, end)
        self._reserve.keep(_data_bytes(self._path / STORE))
        if not self._reserve.is_short:
            self._removed.clear()

    # writing

    def batch(self) -> RocksBatch:
        self._require_open()
        return RocksBatch(self._handles, self._removed if self._reserve.is_short else None)

    def write(self, batch: Batch) -> None:
        if not isinstance(batch, RocksBatch):
            raise TypeError(f"a batch made by this store is needed, not {type(batch).__name__}")
        with self._writing:
            self._require_writable()
            native = batch.consume()
            size = native.size_in_bytes()
            try:
                if self._ahead.must_sync_first:
                    self._root.flush_wal(True)
                    self._ahead.synced(self._ahead.unsynced, asked_for=False)
                self._root.write(native)
            except Exception as error:
                raise self._stop("write", error) from error
            self._ahead.wrote(size)
        self._reserve.grown(size)

    def sync(self) -> None:
        with self._syncing:
            self._require_writable()
            try:
                writes = self._ahead.unsynced
                written = self._root.latest_sequence_number()
                self._root.flush_wal(True)
                self._watermark.advance(written)
            except Exception as error:
                raise self._stop("sync", error) from error
            with self._writing:
                self._ahead.synced(writes)
                if self._ahead.is_due:
                    self._ahead.extend()

    def staging(self) -> str:
        self._require_open()
        directory = self._path / STAGING
        make_private(directory)
        return str(directory)

    def bounds(self, path: str) -> tuple[bytes, bytes]:
        return _bounds(path)

    def ingest(self, family: Family, paths: Sequence[str]) -> None:
        with self._syncing:
            self._require_writable()
            native = self._families[family]
            if not paths:
                return
            try:
                native.flush()
                with self._writing:
                    _ingest(native, paths)
            except Exception as error:
                raise self._stop("ingest", error) from error

    def checkpoint(self, path: str) -> None:
        target = Path(path)
        partial = target.with_name(target.name + PARTIAL)
        for taken in (target, partial):
            if taken.exists():
                raise BackupError(f"{taken} exists already; a backup needs a free place", path=str(taken))
        self.sync()
        with self._syncing:
            self._require_writable()
            try:
                self._copy_to(partial)
                partial.rename(target)
                sync_directory(target.parent)
            except Exception as error:
                shutil.rmtree(partial, ignore_errors=True)
                raise BackupError(f"the backup to {target} failed: {error}", path=str(target)) from error

    def _copy_to(self, directory: Path) -> None:
        """The marker comes last: what has none is not opened."""
        make_private(directory)
        for native in self._families.values():
            native.flush()  # without the GIL, so that little is left for the checkpoint, which keeps it
        home = Home(directory)
        reached = self._root.latest_sequence_number()
        Checkpoint(self._root).create_checkpoint(str(home.store))
        Watermark.write(directory, reached)
        narrow(directory)
        sync_tree(directory)
        home.finish()

    # closing

    def close(self) -> None:
        with self._syncing, self._writing:
            if not self._families:
                return
            natives = [*self._families.values(), self._root]
            for table in (self._families, self._gets, self._handles):
                table.clear()
            for reader in list(self._readers):
                reader.drop()
            self._close_all(natives)

    def _close_all(self, natives: list[Rdict]) -> None:
        """The log is made durable, then each flushes what it holds; the last one ends RocksDB and waits for its threads.

        A flush that RocksDB refuses because it is shutting down already (a compaction was under way) loses nothing: what
        it would have written is in the log.
        """
        troubles: list[Exception] = []
        written = self._root.latest_sequence_number()
        try:
            self._root.flush_wal(True)
        except Exception as error:
            troubles.append(error)
        for native in natives:
            try:
                native.close()
            except Exception as error:
                if not str(error).startswith(_SHUTTING_DOWN):
                    troubles.append(error)
        if not troubles:
            self._watermark.advance(written)
        self._watermark.close()
        with suppress(OSError, StorageFailure):
            narrow(self._path)  # where the filesystem has no ACLs
        if troubles and self._failure is None:
            raise StorageFailure(f"closing {self._path} failed: {troubles[0]}", path=str(self._path)) from troubles[0]

    def _require_open(self) -> None:
        if not self._families:
            raise closed_error(self._path)

    def _require_writable(self) -> None:
        self._require_open()
        if self._failure is not None:
            message = f"{self._path} takes no more writes until it is opened again: {self._failure}"
            raise StorageFailure(message, path=str(self._path)) from self._failure

    def _stop(self, call: str, error: Exception) -> StorageFailure:
        self._failure = StorageFailure(f"a {call} to {self._path} failed: {error}", path=str(self._path))
        return self._failure
