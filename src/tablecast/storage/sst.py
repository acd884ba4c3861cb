"""SST files made outside of a store, for one to ingest.

An SST is RocksDB's own file: keys in strictly ascending order, each with its value. What is written here has the
options of the store's families, so an ingested file is read like any other. No store and no lock is needed: executors
write them on machines that have no database.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from rocksdict import BlockBasedOptions, DBCompressionType, Options, SstFileWriter

from tablecast.storage.base import StorageFailure

_BLOCK_BYTES = 16 * 1024  # these three as in storage.rocks: a file that is ingested is not written again at once
_BLOOM_BITS_PER_KEY = 10


@lru_cache(maxsize=1)
def _options() -> Options:
    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
    blocks.set_block_size(_BLOCK_BYTES)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.lz4())
    return options


def write_sst(path: Path, keys: Iterable[bytes], values: Iterable[bytes]) -> int:
    """Writes the file and returns its bytes. Keys must ascend strictly, and there must be at least one."""
    writer = SstFileWriter(_options())
    try:
        writer.open(str(path))
        for key, value in zip(keys, values, strict=True):
            writer[key] = value
        writer.finish()
    except ValueError:
        raise
    except Exception as error:
        raise StorageFailure(f"the SST {path} cannot be written: {error}", path=str(path)) from error
    return path.stat().st_size
