"""A long run at half of maximum load with every kind of reader attached. `make soak` writes docs/soak.md."""
