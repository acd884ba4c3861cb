"""Who may do what: see `core.rights`, which the engine shares."""

from __future__ import annotations

from tablecast.core.rights import require, require_read, require_write, row_owner

__all__ = ["require", "require_read", "require_write", "row_owner"]
