"""Edge replication beside what its parts can do at most."""
