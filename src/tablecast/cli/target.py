"""Where a command works: the directory of a local database, or the address of a server and who signs in there."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tablecast.errors import InvalidRequest

# What only works on files, and what to do where a server has them.
_INSTEAD = {
    "restore": "restore into a new directory there, and start a server on that",
}


@dataclass(frozen=True, slots=True)
class Target:
    """`place` is a path or a URL. The rest goes with a URL, except that `sql` takes `user` for both."""

    place: str
    user: str | None = None
    password_file: Path | None = None
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None

    @property
    def is_server(self) -> bool:
        return "://" in self.place

    @property
    def name(self) -> str:
        """Short, for a prompt; and without a password that stands in the address."""
        return urlsplit(self.place).netloc.rpartition("@")[2] if self.is_server else Path(self.place).name

    @property
    def address(self) -> str:
        """As it may be shown: without a password."""
        parts = urlsplit(self.place)
        return f"{parts.scheme}://{self.name}{parts.path.rstrip('/')}" if self.is_server else self.place

    def check(self, *, takes_user: bool = False) -> None:
        """That a local database is not asked to sign somebody in."""
        if self.is_server:
            return
        given = {"--password-file": self.password_file, "--token": self.token, "--ca": self.ca}
        if not takes_user:
            given["--user"] = self.user
        for option, value in given.items():
            if value is not None:
                raise InvalidRequest(f"{option} goes with a server's address; {self.place} is a local path")


def require_local(place: str, command: str) -> str:
    """The path; a server's address is refused, with what to do instead."""
    if "://" in place:
        raise InvalidRequest(f"{command} works on files, not through a server: {_INSTEAD[command]}")
    return place
