"""tablecast with Spark: reading, loading and streaming beside Parquet and beside the limits of Spark's own API."""
