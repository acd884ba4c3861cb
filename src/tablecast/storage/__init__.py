"""Bytes that last: the Store contract, RocksDB behind it, and its twin in memory."""
