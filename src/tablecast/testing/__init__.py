"""Instruments for testing what is built on tablecast, and tablecast itself: clock, faults, failpoints, histories."""
