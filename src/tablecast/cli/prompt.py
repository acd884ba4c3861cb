"""Where the shell reads from: prompt_toolkit if it is there, else Python's own input().

Both give a whole statement: lines are added until a semicolon ends it. With prompt_toolkit (the extra `shell`) the
statement can be edited as a whole, names are completed, and what was typed is kept in
`$XDG_STATE_HOME/tablecast/history` (`~/.local/state` by default), readable by its owner only. A statement that holds
a password is not kept.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from tablecast.cli.complete import Names
from tablecast.cli.console import say
from tablecast.cli.script import is_complete

CONTINUED = "... "


class Prompt(Protocol):
    def read(self, marker: str) -> str:
        """A statement or command. Raises KeyboardInterrupt at Ctrl-C and EOFError at Ctrl-D."""
        ...


def make_prompt(names: Names) -> Prompt:
    try:
        return _editing_prompt(names)
    except ImportError:
        say("for history and completion: pip install 'tablecast[shell]'")
        return PlainPrompt()


class PlainPrompt:
    def __init__(self) -> None:
        with suppress(ImportError):
            importlib.import_module("readline")  # gives input() keys to edit with

    def read(self, marker: str) -> str:
        lines: list[str] = []
        try:
            while not lines or not is_complete("\n".join(lines)):
                lines.append(input(CONTINUED if lines else marker))
        except (KeyboardInterrupt, EOFError):
            say("")  # the terminal has not ended the line
            raise
        return "\n".join(lines)


def history_file() -> Path:
    """Made if it is missing."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(state) / "tablecast" / "history"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    return path


def _editing_prompt(names: Names) -> Prompt:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    class Catalogued(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
            word, offered = names.complete(document.text_before_cursor)
            return (Completion(name, start_position=-len(word)) for name in offered)

    class Discreet(FileHistory):
        def store_string(self, string: str) -> None:
            if "password" not in string.lower():
                super().store_string(string)

    def kept() -> History:
        try:
            return Discreet(str(history_file()))
        except OSError as error:
            say(f"no history: {error}")
            return InMemoryHistory()

    keys = KeyBindings()

    @keys.add("enter")
    def finish_or_continue(event: KeyPressEvent) -> None:
        if is_complete(event.current_buffer.text):
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        history=kept(),
        completer=Catalogued(),
        complete_while_typing=False,
        complete_in_thread=True,  # names may have to come from a server
        multiline=True,
        key_bindings=keys,
        prompt_continuation=lambda width, line, wrapped: CONTINUED.rjust(width),
    )

    class Editing:
        def read(self, marker: str) -> str:
            return session.prompt(marker)

    return Editing()
