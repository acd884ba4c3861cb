"""Text that strangers sent, as it may stand in a log: nothing in it begins a line, moves a cursor or turns text around."""

from __future__ import annotations


def printable(text: str) -> str:
    """Everything that is neither a character to be seen nor a space, as an escape: control characters, line ends,
    directions of text, lone surrogates."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(ord(c)) for c in text)


def _escape(code: int) -> str:
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
