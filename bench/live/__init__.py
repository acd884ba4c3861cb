"""Live queries, measured beside the same stack without a database."""
