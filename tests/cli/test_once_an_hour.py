"""The same error at most once an hour: what cron's workers say of a database that is away, and of broken code."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from taskserver import DatabaseError
from taskserver.errors import SettingError
from taskserver.host.once_an_hour import OVER, kind_of
from tests.support.deployment import Deployment
from tests.support.processes import assert_silent, run_on_terminal, wait_until

AWAY = "mysql://user:secret@127.0.0.1:1/shop"
REFUSED = re.compile(r"worker\.py: 127\.0\.0\.1:1/shop: Can't connect .*\(said once an hour\)\n")


@pytest.fixture
def site(deployment: Deployment) -> Deployment:
    deployment.write_tasks("")
    assert deployment.here("init", env=sqlite(deployment)).returncode == 0
    return deployment


def sqlite(deployment: Deployment) -> dict[str, str]:
    return {"TASKSERVER_DSN": f"sqlite:///{deployment.folder}/q.db"}


def run(site: Deployment, *args: object, dsn: str = AWAY) -> subprocess.CompletedProcess[str]:
    return site.worker(*args, env={"TASKSERVER_DSN": dsn})


def files(site: Deployment) -> list[Path]:
    return sorted(site.folder.glob("var/outages/*"))


def test_a_database_that_is_away_is_told_once_an_hour(site: Deployment) -> None:
    first, *others = [run(site) for _ in range(3)]
    assert REFUSED.fullmatch(first.stderr)
    assert [(one.returncode, one.stderr) for one in others] == [(1, "")] * 2
    noted = [(path.stat().st_mode & 0o777, path.stat().st_size) for path in files(site)]
    assert noted == [(0o600, 0)] * 2  # which take no room on a full disk
    for seconds in (3 * 3600, -7200):  # a clock may be set back
        site.age_outages(seconds)
        assert REFUSED.fullmatch(run(site).stderr)
        assert run(site).stderr == ""


def test_the_workers_of_one_line_tell_it_once(site: Deployment) -> None:
    ended = run(site, "--processes", 4)
    assert ended.returncode == 1
    assert REFUSED.fullmatch(ended.stderr)
    assert run(site, "--processes", 4).stderr == ""


def test_an_error_of_other_words_is_told_at_once(site: Deployment) -> None:
    """As after a first mend: who hears nothing takes it for a success."""
    for text in ("def", "import nowhere"):
        site.write_tasks(text)
        assert site.here("add", "tasks.send", env=sqlite(site)).returncode == 0
        assert "said once an hour" in site.worker(env=sqlite(site)).stderr
    dsn = sqlite(site)["TASKSERVER_DSN"]
    (site.folder / "q.db").rename(site.folder / "gone.db")
    assert "run client.py init" in run(site, dsn=dsn).stderr
    assert run(site, dsn=dsn).stderr == ""
    (site.folder / "q.db").write_text("no database at all")
    assert "is not a database" in run(site, dsn=dsn).stderr
    assert run(site, dsn=dsn).stderr == ""
    assert REFUSED.fullmatch(run(site).stderr)  # of another queue


def test_errors_of_a_database_that_differ_by_numbers_are_told_together() -> None:
    assert kind_of(DatabaseError("file '/tmp/#sql-4d2-82cf' is gone")) == kind_of(
        DatabaseError("file '/tmp/#9' is gone")
    )
    assert kind_of(DatabaseError("this")) != kind_of(DatabaseError("that"))
    assert kind_of(SettingError(".env, line 3 is wrong")) != kind_of(SettingError(".env, line 5 is wrong"))


def test_its_end_is_told_once_and_an_outage_right_after_it_with_the_next_hour(site: Deployment) -> None:
    """A server without free connections turns away one start in two: that is two lines an hour, not sixty."""
    dsn = sqlite(site)["TASKSERVER_DSN"]
    database, away = site.folder / "q.db", site.folder / "gone.db"

    def take_away(seconds: float) -> str:
        database.rename(away)
        said = run(site, dsn=dsn).stderr
        site.age_outages(seconds)
        away.rename(database)
        return said

    assert "run client.py init" in take_away(600)
    assert run(site, dsn=dsn).stderr == f"worker.py: {OVER}\n"
    assert run(site, dsn=dsn).stderr == ""
    assert (take_away(600), run(site, dsn=dsn).stderr) == ("", "")
    site.age_outages(2400)
    assert "run client.py init" in take_away(600)
    assert OVER in run(site, dsn=dsn).stderr
    site.age_outages(3600)
    run(site, dsn=dsn)
    assert not (site.folder / "var" / "outages").exists()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("no .env", "TASKSERVER_DSN is not set"),
        ("a wrong setting", "TASKSERVER_MODE is wrong"),
        ("broken code", "module tasks cannot be imported: SyntaxError"),
        ("a missing module", "module tasks cannot be imported: ModuleNotFoundError"),
    ],
)
def test_code_and_settings_that_are_wrong_are_told_once_an_hour(site: Deployment, what: str, words: str) -> None:
    env = {} if what == "no .env" else sqlite(site)
    if what == "a wrong setting":
        env["TASKSERVER_MODE"] = "keep"
    site.write_tasks({"broken code": "def", "a missing module": "import nowhere"}.get(what, ""))
    for _ in range(3):
        assert site.here("add", "tasks.send", env=sqlite(site)).returncode == 0
    first, *others = [site.worker("--processes", 2, env=env) for _ in range(3)]
    assert words in first.stderr
    assert first.stderr.endswith(" (said once an hour)\n")
    assert first.stderr.count("\n") == 1
    assert [(one.returncode, one.stderr) for one in others] == [(first.returncode, "")] * 2
    site.age_outages(3600)
    site.here("add", "tasks.send", env=sqlite(site))
    assert site.worker(env=env).stderr == first.stderr


def test_a_page_or_check_for_cron_tells_a_wrong_setting_once_an_hour_and_a_printed_page_each_time(
    site: Deployment,
) -> None:
    env = sqlite(site) | {"TASKSERVER_MODE": "keep"}
    file, none = ("page", "--output", site.folder / "page.html"), ("page",)
    ends = [site.here(*arguments, env=env) for arguments in (file, file, none)]
    assert [one.returncode for one in ends] == [2] * 3
    assert re.fullmatch(r"client\.py: TASKSERVER_MODE is wrong.*\(said once an hour\)\n", ends[0].stderr)
    assert (ends[1].stderr, "TASKSERVER_MODE is wrong" in ends[2].stderr) == ("", True)
    first, second = [site.here("check", "--mail", env=env) for _ in range(2)]
    assert first.stdout.startswith("TASKSERVER UNKNOWN: TASKSERVER_MODE is wrong")
    assert [(one.returncode, one.stderr) for one in (first, second)] == [(3, "")] * 2
    assert second.stdout == ""


def test_a_page_for_cron_tells_an_outage_once_an_hour_and_its_end(site: Deployment) -> None:
    line = ("page", "--no-doctor", "--output", site.folder / "page.html")
    first, second = [site.here(*line, env={"TASKSERVER_DSN": AWAY}) for _ in range(2)]
    assert REFUSED.fullmatch(first.stderr.replace("client.py", "worker.py"))
    assert (first.returncode, second.returncode, second.stderr) == (1, 1, "")
    site.age_outages(600)
    assert [site.here(*line, env=sqlite(site)).stderr for _ in range(2)] == [f"client.py: {OVER}\n", ""]


def test_a_worker_that_finds_no_slot_tells_of_no_end(site: Deployment) -> None:
    """It has not asked the database."""
    site.write_tasks("import time\ndef hold():\n    open('began', 'w').close()\n    time.sleep(60)\n")
    assert site.here("add", "tasks.hold", env=sqlite(site)).returncode == 0
    worker = site.popen("worker.py", "--slots", 1, env=sqlite(site))
    wait_until((site.home / "began").exists)
    (site.folder / "q.db").rename(site.folder / "gone.db")
    dsn = sqlite(site)["TASKSERVER_DSN"]
    assert "run client.py init" in run(site, 0, 5, dsn=dsn).stderr
    assert run(site, "--slots", 1, dsn=dsn).stderr == ""
    assert len(files(site)) == 2
    worker.kill()
    worker.wait()


def test_whoever_takes_no_line_on_standard_error_changes_no_exit_code(site: Deployment) -> None:
    run(site, dsn=f"sqlite:///{site.folder}/none.db")
    site.age_outages(600)
    (site.folder / "q.db").rename(site.folder / "none.db")
    env = {"TASKSERVER_DSN": f"sqlite:///{site.folder}/none.db"}
    with open("/dev/full", "w") as full:
        assert subprocess.run([site.python, site.folder / "worker.py"], env=env, stderr=full).returncode == 0


def test_the_log_has_each_failure_and_a_person_who_asks_hears_it(site: Deployment) -> None:
    (site.folder / "var").mkdir(exist_ok=True)
    env = {"TASKSERVER_DSN": AWAY, "TASKSERVER_LOG": "var/log"}
    for _ in range(3):
        site.worker(env=env)
    assert (site.folder / "var/log").read_text().count("ERROR 127.0.0.1:1/shop: Can't connect") == 3
    assert len(site.worker("--verbose", env=env).stderr.splitlines()) == 2  # the first names the deployment


@pytest.mark.usefixtures("bound_by_rights")
def test_a_folder_that_cannot_be_entered_fails_no_run(site: Deployment) -> None:
    var = site.folder / "var"
    var.mkdir(exist_ok=True)
    var.chmod(0)
    try:
        assert_silent(run(site, "--slots", 0, dsn=sqlite(site)["TASKSERVER_DSN"]))
    finally:
        var.chmod(0o700)


def test_it_is_told_each_time_where_that_cannot_be_noted_and_no_var_is_made(tmp_path: Path, site: Deployment) -> None:
    (site.folder / "var").mkdir(exist_ok=True)
    (site.folder / "var" / "outages").write_text("in the way")
    other = tmp_path / "other"
    other.mkdir()
    for _ in range(2):
        ended = run(site)
        assert ended.returncode == 1
        assert ended.stderr.startswith("worker.py: 127.0.0.1:1/shop: Can't connect")
        assert "once an hour" not in ended.stderr
        ended = site.worker("--folder", other)
        assert (ended.returncode, ended.stderr.endswith("once an hour)\n")) == (2, False)
    assert list(other.iterdir()) == []


@pytest.mark.parametrize("line", ["worker.py", "client.py check --mail"])
def test_a_person_at_a_terminal_is_told_each_time(site: Deployment, line: str) -> None:
    run(site)
    for _ in range(2):
        seen = run_on_terminal(site, *line.split(), TASKSERVER_DSN=AWAY)
        assert ("Can't connect" in seen.screen, "once an hour" in seen.screen) == (True, False)
        assert seen.code == (1 if line == "worker.py" else 2)
