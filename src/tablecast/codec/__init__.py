"""Bytes <-> values, one file per format. Each file states its layout first."""
