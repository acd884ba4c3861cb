"""Frozen values: what tablecast talks about. Imports nothing of ours."""
