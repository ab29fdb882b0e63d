"""The DSN of an SQLite file."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from .parts import split_options, wrong

MEMORY = ":memory:"
SYNCHRONOUS = ("full", "normal")
"""What SQLite waits for at a commit: its disk, or nothing, so that a power cut may cost the last commits."""


class SQLiteDsn(NamedTuple):
    """An SQLite file, or `:memory:`. A relative path starts in the program's folder."""

    path: str
    synchronous: str = SYNCHRONOUS[0]
    """One of SYNCHRONOUS."""

    @property
    def place(self) -> str:
        """The path for messages, as it was written."""
        return self.path

    @property
    def is_loopback(self) -> bool:
        """Whether the connection stays on this host, as a file's does."""
        return True

    @property
    def is_verified(self) -> bool:
        """Whether it is sure who answers, as with a file."""
        return True

    @property
    def has_password(self) -> bool:
        """Whether it holds a secret; a file has none."""
        return False

    def database_file(self, folder: Path) -> Path | None:
        """The file, which programs of this host open themselves; None for `:memory:`. Relative to `folder`."""
        return None if self.path == MEMORY else Path(folder, self.path)


def parse_sqlite(rest: str) -> SQLiteDsn:
    """The DSN whose `rest` follows `sqlite://`. Raises SettingError."""
    if not rest.startswith("/"):
        raise wrong("sqlite: is followed by three slashes and a relative path, or by four and an absolute one")
    written, _, query = rest[1:].partition("?")
    path = unquote(written)
    if not path or path.endswith("/") or "\0" in path:
        raise wrong("it names no database file")
    if "mode=memory" in query:  # as Django names the database of its tests
        raise wrong("it is a database in memory, which no other connection has: in Django, set TEST NAME to a file")
    options = split_options(query, ("synchronous",), {}, hint="; in the name of a file, a '?' is written %3F")
    synchronous = options["synchronous"].lower() or SYNCHRONOUS[0]
    if synchronous not in SYNCHRONOUS:
        raise wrong(f"its synchronous is none of {', '.join(SYNCHRONOUS)}")
    return SQLiteDsn(path, synchronous)
