"""Runs core over storage: one writer that decides, commits and tells; many readers of what is durable."""
