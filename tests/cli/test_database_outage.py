"""A database that is away: what cron's workers say of it, minute after minute."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import run_on_terminal

AWAY = "mysql://user:secret@127.0.0.1:1/shop"
REFUSED = re.compile(r"worker\.py: 127\.0\.0\.1:1/shop: Can't connect .*\(said once an hour\)\n")
SINCE = re.compile(r"worker\.py: 127\.0\.0\.1:1/shop: Can't connect .*\(for 3 h now; said once an hour\)\n")


@pytest.fixture
def site(deployment: Deployment) -> Deployment:
    deployment.write_tasks("")
    assert deployment.client("init", env=sqlite(deployment)).returncode == 0
    return deployment


def sqlite(deployment: Deployment) -> dict[str, str]:
    return {"TASKSERVER_DSN": f"sqlite:///{deployment.folder}/q.db"}


def run(site: Deployment, *args: object, dsn: str = AWAY) -> subprocess.CompletedProcess[str]:
    return site.worker(*args, env={"TASKSERVER_DSN": dsn})


def files(site: Deployment) -> list[Path]:
    return [*site.folder.glob("var/outages/*")]


def let_pass(path: Path, seconds: float) -> None:
    """Makes the file of an outage as it would be so much later."""
    began, told, kind = path.read_text().split()
    failed_at = path.stat().st_mtime
    path.write_text(f"{int(began) - int(seconds)} {int(told) - int(seconds)} {kind}\n")
    os.utime(path, (failed_at - seconds, failed_at - seconds))


def test_a_database_that_is_away_is_told_once_an_hour(site: Deployment) -> None:
    first, *others = [run(site) for _ in range(3)]
    assert REFUSED.fullmatch(first.stderr)
    assert [(one.returncode, one.stderr) for one in others] == [(1, "")] * 2
    (path,) = files(site)
    assert path.stat().st_mode & 0o777 == 0o600
    let_pass(path, 3 * 3600)
    assert SINCE.fullmatch(run(site).stderr)
    assert run(site).stderr == ""


def test_the_workers_of_one_line_tell_it_once(site: Deployment) -> None:
    ended = run(site, "--processes", 4)
    assert ended.returncode == 1
    assert REFUSED.fullmatch(ended.stderr)
    assert run(site, "--processes", 4).stderr == ""


def test_an_error_of_another_kind_is_told_at_once(site: Deployment) -> None:
    run(site)
    other = run(site, dsn=f"sqlite:///{site.folder}/none.db")
    assert (other.returncode, "run client.py init" in other.stderr) == (1, True)
    assert len(files(site)) == 2  # of two databases
    (path,) = (file for file in files(site) if "away" not in file.read_text())
    path.write_text(re.sub(r"\w+$", "0badcafe", path.read_text()))
    assert "run client.py init" in run(site, dsn=f"sqlite:///{site.folder}/none.db").stderr


def test_its_end_is_told_once_and_the_next_outage_at_once(site: Deployment) -> None:
    dsn = sqlite(site)["TASKSERVER_DSN"]
    (site.folder / "q.db").rename(site.folder / "gone.db")
    assert "run client.py init" in run(site, dsn=dsn).stderr
    (path,) = files(site)
    began, told, kind = path.read_text().split()
    path.write_text(f"{int(began) - 600} {told} {kind}")
    (site.folder / "gone.db").rename(site.folder / "q.db")
    for _ in range(2):  # a server that is full turns away one start and takes another
        assert (run(site, dsn=dsn).stderr, len(files(site))) == ("", 1)
    let_pass(path, 151)
    assert run(site, dsn=dsn).stderr == "worker.py: the database can be used again; the outage lasted 10 min\n"
    assert not path.parent.exists()
    assert run(site, dsn=dsn).stderr == ""
    (site.folder / "q.db").unlink()
    assert "run client.py init" in run(site, dsn=dsn).stderr


@pytest.mark.parametrize("text", ["", "nonsense", "1 2", "x y z"])
def test_a_file_that_was_cut_off_has_it_told_anew(site: Deployment, text: str) -> None:
    run(site)
    (path,) = files(site)
    path.write_text(text)
    assert REFUSED.fullmatch(run(site).stderr)
    assert run(site).stderr == ""


def test_a_clock_that_was_set_back_has_it_told_anew(site: Deployment) -> None:
    run(site)
    (path,) = files(site)
    path.write_text(f"{int(time.time()) + 7200} {int(time.time()) + 7200} away\n")
    assert REFUSED.fullmatch(run(site).stderr)
    assert run(site).stderr == ""


def test_it_is_told_each_time_where_that_cannot_be_noted(site: Deployment) -> None:
    (site.folder / "var").mkdir(exist_ok=True)
    (site.folder / "var" / "outages").write_text("in the way")
    for _ in range(2):
        ended = run(site)
        assert ended.returncode == 1
        assert ended.stderr.startswith("worker.py: 127.0.0.1:1/shop: Can't connect")
        assert "once an hour" not in ended.stderr


def test_a_person_at_a_terminal_is_told_each_time(site: Deployment) -> None:
    run(site)
    for _ in range(2):
        seen = run_on_terminal(site, "worker.py", TASKSERVER_DSN=AWAY)
        assert (seen.code, "Can't connect" in seen.screen, "once an hour" in seen.screen) == (1, True, False)
