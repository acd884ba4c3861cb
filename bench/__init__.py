"""Measurements, side by side with the peer or the limit in one run. `make bench` prints ratios."""
