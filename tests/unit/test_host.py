"""The host: atomic files, private folders, file systems, the shared log, slots, outages."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import os
import sqlite3
import stat
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from taskserver import DatabaseError
from taskserver.cli.terminal import log_file
from taskserver.errors import HostLimit, SettingError, Unavailable
from taskserver.host import files
from taskserver.host.once_an_hour import OnceAnHour, kind_of
from taskserver.host.slots import Slots
from taskserver.settings.load import load_settings


def test_an_atomic_file_has_the_given_mode_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        files.write_atomically(tmp_path / "page.html", "état\ud800", 0o644)
    finally:
        os.umask(before)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "état\\ud800"
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["page.html"]


def test_the_error_names_a_path_that_cannot_be_written(tmp_path: Path) -> None:
    for name, words in (("none/page.html", "No such file or directory"), ("/dev/null", "it is not a file")):
        with pytest.raises(SettingError, match=f"cannot be written: {words}"):
            files.write_atomically(tmp_path / name, "", 0o644)
    assert os.listdir(tmp_path) == []


# ---- a file of JSON lines that only grows


def lines_of(path: Path) -> list[Any]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def added(path: Path, *records: Any) -> None:
    with closing(files.JsonLines(path)) as file:
        file.add(records)


def test_what_a_crash_cut_off_is_removed_and_what_was_whole_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "old.jsonl.gz"
    umask = os.umask(0)
    added(path, {"id": 1}, {"id": 2, "at": datetime(2026, 1, 31, tzinfo=timezone.utc), "text": "é\ud800"})
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = [{"id": 1}, {"id": 2, "at": "2026-01-31T00:00:00.000000Z", "text": "é\ud800"}]
    assert lines_of(path) == first
    whole = path.read_bytes()
    added(path, {"id": 3})
    both = path.read_bytes()
    for size in range(len(files.JsonLines.END), len(both) + 1):
        path.write_bytes(both[:size])
        added(path, {"id": 4})
        kept = first if size >= len(whole) else []
        assert lines_of(path) == [*kept, *([{"id": 3}] if size == len(both) else []), {"id": 4}], size
    assert subprocess.run(["zcat", path], capture_output=True, check=True, text=True).stdout.count("\n") == 4


def test_a_file_that_cannot_be_added_to_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").write_text("TASKSERVER_DSN=x")
    for name, words in (
        ("other", "was not written by client.py prune"),
        ("none/file", "cannot be written: No such file"),
        ("", "cannot be written: Is a directory"),
        ("/dev/null", "cannot be written: Invalid argument"),
    ):
        with pytest.raises(SettingError, match=words):
            files.JsonLines(tmp_path / name)
    assert (tmp_path / "other").read_text() == "TASKSERVER_DSN=x"

    path = tmp_path / "old.jsonl.gz"
    added(path, {"id": 1})
    with closing(files.JsonLines(path)) as file:
        with pytest.raises(SettingError, match="is being written by another program"):
            files.JsonLines(path)
        for number, kind in ((errno.ENOSPC, HostLimit), (errno.EIO, SettingError)):
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", Full(number))
                with pytest.raises(kind, match=f"cannot be written: {os.strerror(number)}"):
                    file.add([{"id": 2}])
            assert lines_of(path) == [{"id": 1}]
        file.add([{"id": 3}])
    assert lines_of(path) == [{"id": 1}, {"id": 3}]


class Full:
    """os.write on a disk that takes seven more bytes."""

    def __init__(self, number: int) -> None:
        self._left, self._number, self._write = 7, number, os.write

    def __call__(self, descriptor: int, content: bytes) -> int:
        if not self._left:
            raise OSError(self._number, os.strerror(self._number))
        written = self._write(descriptor, content[: self._left])
        self._left -= written
        return written


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, HostLimit), (errno.EROFS, SettingError)])
def test_a_full_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    files.write_atomically(tmp_path / "page.html", "old", 0o644)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(kind, match=os.strerror(number)):
        files.write_atomically(tmp_path / "page.html", "new", 0o644)
    assert os.listdir(tmp_path) == ["page.html"]
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "old"


def test_private_folders_are_closed_to_others_under_any_umask(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "data" / "var"
    umask = os.umask(0)
    try:
        files.make_private_folder(folder)
        (tmp_path / "uploaded").mkdir()
        files.close_to_others(tmp_path / "uploaded")
    finally:
        os.umask(umask)
    made = (folder, folder / ".htaccess", folder.parent, folder.parent.parent, tmp_path / "uploaded" / ".htaccess")
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700, 0o644, 0o700, 0o700, 0o644]


TABLE = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 0:40 / /home rw,relatime shared:2 master:3 propagate_from:1 - nfs4 filer.example.org:/home rw,vers=4.2
31 30 8:1 / /home/local rw - xfs /dev/sdb rw
32 27 0:41 / /mnt/with\040a\040space rw - cifs //filer/x rw
34 27 0:43 / /srv rw - nfs filer.example.org:/srv rw
35 34 8:2 / /srv rw - ext4 /dev/sdc rw
"""


PLACES = {
    "/": None,
    "/home/you/taskserver/var/taskserver.db": "nfs4",
    "/home/locals/shop.db": "nfs4",
    "/mnt/with a space/shop.db": "cifs",
    "/srv/shop.db": None,
    "linked/shop.db": "nfs4",
}


def test_the_longest_mount_point_gives_the_file_system(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(TABLE.lstrip())
    (tmp_path / "linked").symlink_to("/home/you")
    assert {path: files.network_file_system(tmp_path / path, table) for path in PLACES} == PLACES
    assert files.network_file_system("/shop.db", tmp_path / "not there") is None


# ---- who else may write a file


def of(uid: int, gid: int, mode: int) -> Any:
    """A path of this owner, group and rights."""
    return SimpleNamespace(stat=lambda: SimpleNamespace(st_uid=uid, st_gid=gid, st_mode=mode))


@pytest.mark.parametrize(
    ("path", "members", "who"),
    [
        (of(5, 7, 0o644), [], ""),
        (of(5, 7, 0o646), [], "any account"),
        (of(6, 7, 0o644), [], "its owner eve"),
        (of(5, 7, 0o664), [], ""),  # the private group of an account
        (of(5, 7, 0o664), ["eve"], "the group you"),
        (of(5, 8, 0o664), [], "the group users"),
    ],
)
def test_root_the_owner_and_their_private_groups_are_trusted(
    monkeypatch: pytest.MonkeyPatch, path: Any, members: list[str], who: str
) -> None:
    groups = {0: "root", 7: "you", 8: "users"}
    monkeypatch.setattr("grp.getgrgid", lambda gid: SimpleNamespace(gr_name=groups[gid], gr_mem=members))
    monkeypatch.setattr(files, "account_name", {0: "root", 5: "you", 6: "eve"}.get)
    assert files.who_else_may_write(path, of(5, 7, 0o755)) == who


# ---- the file of TASKSERVER_LOG, which the workers of a host share; tests/process/test_logging.py has the rest


def test_a_forked_process_and_its_parent_rotate_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both share a file that was opened before the fork, and its locks."""
    monkeypatch.setattr(log_file, "MAX_FILE_BYTES", 20_000)
    monkeypatch.setattr(log_file, "KEPT_FILES", 50)
    settings = load_settings(tmp_path, {"TASKSERVER_DSN": "sqlite:///q.db", "TASKSERVER_LOG": "log"})
    handler = log_file.file_handler(settings)
    record = logging.makeLogRecord({"msg": "x" * 100, "levelno": logging.INFO, "levelname": "INFO"})
    handler.emit(record)
    children = []
    for _ in range(4):
        children.append(os.fork())
        if not children[-1]:
            for _ in range(1000):
                handler.emit(record)
            os._exit(0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    logs = sorted(tmp_path.glob("log*"), key=lambda log: log.stat().st_size)
    assert sum(len(log.read_text().splitlines()) for log in logs) == 4001
    assert all(log.stat().st_size > 15_000 for log in logs[1:])


@pytest.mark.parametrize("name", ["q.db", "pipe", "folder"])
def test_a_file_that_is_not_a_log_is_refused(tmp_path: Path, name: str) -> None:
    """It would be renamed at 10 MB, and deleted three times later; a pipe would hold the worker up for ever."""
    sqlite3.connect(tmp_path / "q.db").execute("CREATE TABLE t (x)").connection.close()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    settings = load_settings(tmp_path, {"TASKSERVER_DSN": "sqlite:///q.db", "TASKSERVER_LOG": name})
    with pytest.raises(SettingError, match=f"^TASKSERVER_LOG: .*/{name} .*: name a file of its own"):
        log_file.file_handler(settings)
    assert files.why_no_log(Path("/dev/stderr"), tmp_path) is None


def test_a_missing_var_folder_is_refused_with_the_fix(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {"TASKSERVER_DSN": "sqlite:///q.db", "TASKSERVER_LOG": "var/taskserver.log"})
    with pytest.raises(SettingError, match=rf"there is no folder {tmp_path}/var: client.py init makes it$"):
        log_file.file_handler(settings)


# ---- slots and their successors; tests/process/test_slots.py has them with real workers


MakeSlots = Callable[..., Slots]


@pytest.fixture
def make(tmp_path: Path) -> MakeSlots:
    return lambda most=1: Slots(tmp_path, "host", "queue", "all", most)


class Successor:
    """Waits for a slot in its own thread, and looks for it on request."""

    def __init__(self, slots: Slots, pool: ThreadPoolExecutor) -> None:
        self._waits, self._goes_on, self.is_wanted = Event(), Event(), True
        self.has_slot: Future[bool] = pool.submit(slots.take_or_wait, self._wait)
        assert self._waits.wait(10)

    def _wait(self, seconds: float) -> bool:
        self._waits.set()
        return self._goes_on.wait(10) and self.is_wanted

    def end(self, is_wanted: bool = True) -> bool:
        self.is_wanted = is_wanted
        self._goes_on.set()
        return self.has_slot.result(10)


def test_a_waiting_successor_gets_the_free_slot_before_a_newcomer(make: MakeSlots) -> None:
    before, waiting, newcomer = make(), make(), make()
    assert before.take()
    with ThreadPoolExecutor() as pool:
        successor = Successor(waiting, pool)
        before.leave()

        def wait(seconds: float) -> bool:
            assert successor.end()
            return False

        assert not newcomer.take_or_wait(wait)
    waiting.leave()


def test_a_successor_waits_for_the_worker_with_the_oldest_slot(make: MakeSlots) -> None:
    """Successors of one line come one after the other: the second must not wait for the first."""
    one, other, next_one = (make(2) for _ in range(3))
    assert one.take()
    assert other.take()
    one.leave()
    time.sleep(0.02)  # two instants for any file system
    assert next_one.take()
    with ThreadPoolExecutor() as pool:
        successor = Successor(make(2), pool)
        assert (next_one.has_successor(), other.has_successor()) == (False, True)
        assert not successor.end(is_wanted=False)
    next_one.leave()
    other.leave()


# ---- the same error at most once an hour, by empty files of one deployment, whose times a test moves

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


def test_each_program_reports_an_error_once_an_hour(host: Host) -> None:
    assert [host.said(AWAY), host.said(AWAY), host.said(AWAY, "client.py")] == [SAID, "", SAID]
    assert {(path.stat().st_mode & 0o777, path.stat().st_size) for path in host.files.iterdir()} == {(0o600, 0)}
    host.pass_time(3600)
    assert [host.said(AWAY), host.said(AWAY)] == [SAID, ""]


def test_an_error_with_another_message_is_reported_at_once() -> None:
    """But for numbers in those of a database."""
    gone = [kind_of(DatabaseError(f"file '/tmp/#{name}' is gone")) for name in ("sql-4d2-82cf", "9")]
    assert gone[0] == gone[1]
    assert kind_of(DatabaseError("this")) != kind_of(DatabaseError("that"))
    assert kind_of(SettingError(".env, line 3 is wrong")) != kind_of(SettingError(".env, line 5 is wrong"))


def test_the_end_of_a_long_outage_is_reported_once(host: Host) -> None:
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


def test_an_error_that_could_not_be_written_is_reported_the_next_time(host: Host) -> None:
    def refuse(words: str) -> None:
        raise OSError

    with pytest.raises(OSError):
        OnceAnHour(host.folder, "worker.py").report(AWAY, refuse)
    assert host.said(AWAY) == SAID


def test_an_error_is_reported_each_time_if_no_note_can_be_written(host: Host) -> None:
    host.files.write_text("in the way")
    assert [host.said(AWAY), host.said(AWAY)] == ["Can't connect"] * 2
