"""The same error at most once an hour, by empty files of one deployment, whose times a test moves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from taskserver import DatabaseError
from taskserver.errors import SettingError, Unavailable
from taskserver.host.once_an_hour import OnceAnHour, kind_of

AWAY = Unavailable("Can't connect")
SAID = "Can't connect (said once an hour)"


class Host:
    """A deployment whose workers come one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "var").mkdir()
        self.files = folder / "var" / "outages"

    def said(self, error: Exception, who: str = "worker.py") -> str:
        """What a program says of an error; empty if nothing."""
        written: list[str] = []
        OnceAnHour(self.folder, who).report(error, written.append)
        return "".join(written)

    def is_over(self, who: str = "worker.py") -> bool:
        return OnceAnHour(self.folder, who).end_outage()

    def pass_time(self, seconds: float) -> None:
        for path in self.files.glob("*"):
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_an_error_is_said_once_an_hour_and_each_program_says_it_for_itself(host: Host) -> None:
    assert [host.said(AWAY), host.said(AWAY), host.said(AWAY, "client.py")] == [SAID, "", SAID]
    assert {(path.stat().st_mode & 0o777, path.stat().st_size) for path in host.files.iterdir()} == {(0o600, 0)}
    for seconds in (3600, -7200):  # a clock may be set back
        host.pass_time(seconds)
        assert [host.said(AWAY), host.said(AWAY)] == [SAID, ""]


def test_an_error_of_other_words_is_said_at_once() -> None:
    """But for numbers in those of a database."""
    gone = [kind_of(DatabaseError(f"file '/tmp/#{name}' is gone")) for name in ("sql-4d2-82cf", "9")]
    assert gone[0] == gone[1]
    assert kind_of(DatabaseError("this")) != kind_of(DatabaseError("that"))
    assert kind_of(SettingError(".env, line 3 is wrong")) != kind_of(SettingError(".env, line 5 is wrong"))


def test_the_end_of_a_long_outage_is_said_once_and_then_nothing_is_left(host: Host) -> None:
    """A server without free connections turns away one start in two: that is two lines an hour, not sixty."""
    assert not host.is_over()
    assert host.said(AWAY)
    host.pass_time(600)
    assert not host.is_over("client.py")  # which said nothing of it
    assert [host.is_over(), host.is_over()] == [True, False]
    assert [host.said(AWAY), host.is_over()] == ["", False]
    host.pass_time(3600)
    assert host.said(AWAY)
    assert not host.is_over()  # it was short
    host.pass_time(3600)
    host.is_over()
    assert not host.files.exists()


def test_what_could_not_be_written_is_said_the_next_time(host: Host) -> None:
    def refuse(words: str) -> None:
        raise OSError

    with pytest.raises(OSError):
        OnceAnHour(host.folder, "worker.py").report(AWAY, refuse)
    assert host.said(AWAY) == SAID


def test_it_is_said_each_time_if_that_cannot_be_noted_and_no_var_is_made(host: Host) -> None:
    host.files.write_text("in the way")
    assert [host.said(AWAY), host.said(AWAY)] == ["Can't connect"] * 2
    host.files.unlink()
    host.files.parent.rmdir()
    assert [host.said(AWAY), host.said(AWAY)] == ["Can't connect"] * 2
    assert list(host.folder.iterdir()) == []
