"""Frames that are sent by the million are put together here: they are, byte for byte, those of the library that reads."""

from __future__ import annotations

import pytest
from websockets.frames import Frame, Opcode

from tablecast.server.live_socket import binary_frame, text_frame


@pytest.mark.parametrize("length", [0, 1, 125, 126, 127, 65_535, 65_536, 100_000])
def test_frames_of_every_length_are_those_of_the_library(length: int) -> None:
    payload = b"x" * length
    assert text_frame(payload) == Frame(Opcode.TEXT, payload).serialize(mask=False)
    assert binary_frame(payload) == Frame(Opcode.BINARY, payload).serialize(mask=False)
