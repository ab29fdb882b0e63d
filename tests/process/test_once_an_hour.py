"""What cron's workers say on standard error of a database that is away, and of broken code: once an hour.

The notes and their times are in tests/unit/test_once_an_hour.py; `check --mail` and pages in tests/cli/test_check.py.
"""

from __future__ import annotations

import re
import subprocess

import pytest

from taskserver.host.once_an_hour import OVER
from tests.support.deployment import Deployment
from tests.support.processes import assert_silent, wait_until

AWAY = "mysql://user:secret@127.0.0.1:1/shop"
REFUSED = re.compile(r"worker\.py: 127\.0\.0\.1:1/shop: Can't connect .*\(said once an hour\)\n")


@pytest.fixture
def site(deployment: Deployment) -> Deployment:
    deployment.write_tasks("")
    assert deployment.here("init", env=sqlite(deployment)).returncode == 0
    (deployment.folder / "var").mkdir(exist_ok=True)
    return deployment


def sqlite(deployment: Deployment) -> dict[str, str]:
    return {"TASKSERVER_DSN": f"sqlite:///{deployment.folder}/q.db"}


def test_a_database_that_is_away_is_told_once_an_hour_whatever_the_number_of_workers(site: Deployment) -> None:
    env = {"TASKSERVER_DSN": AWAY, "TASKSERVER_LOG": "var/log"}
    ended = [site.worker(*line, env=env) for line in (["--processes", "4"], [], ["--verbose"])]
    assert [one.returncode for one in ended] == [1] * 3
    assert REFUSED.fullmatch(ended[0].stderr)
    assert ended[1].stderr == ""
    assert len(ended[2].stderr.splitlines()) == 2  # the first names the deployment
    assert (site.folder / "var/log").read_text().count("ERROR 127.0.0.1:1/shop: Can't connect") >= 3


def test_the_end_of_an_outage_is_told_by_a_worker_that_asked_the_database(site: Deployment) -> None:
    site.write_tasks("import time\ndef hold():\n    open('began', 'w').close()\n    time.sleep(60)\n")
    assert site.here("add", "tasks.hold", env=sqlite(site)).returncode == 0
    busy = site.popen("worker.py", "--slots", 1, env=sqlite(site))
    wait_until((site.home / "began").exists)
    (site.folder / "q.db").rename(site.folder / "gone.db")
    assert "run client.py init" in site.worker(0, 5, env=sqlite(site)).stderr
    site.age_outages(600)
    assert site.worker("--slots", 1, env=sqlite(site)).stderr == ""  # it finds no slot, and so does not ask
    busy.kill()
    busy.wait()
    (site.folder / "gone.db").rename(site.folder / "q.db")
    first, second = [site.worker(0, 5, env=sqlite(site)).stderr for _ in range(2)]
    assert (first.splitlines()[-1], second) == (f"worker.py: {OVER}", "")


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("a wrong setting", "TASKSERVER_MODE is wrong"),
        ("broken code", "module tasks cannot be imported: SyntaxError"),
    ],
)
def test_code_and_settings_that_are_wrong_are_told_once_an_hour(site: Deployment, what: str, words: str) -> None:
    env = sqlite(site)
    if what == "a wrong setting":
        env["TASKSERVER_MODE"] = "keep"
    site.write_tasks("def" if what == "broken code" else "")
    for _ in range(3):
        assert site.here("add", "tasks.send", env=sqlite(site)).returncode == 0
    first, second = [site.worker("--processes", 2, env=env) for _ in range(2)]
    assert words in first.stderr
    assert first.stderr.endswith(" (said once an hour)\n")
    assert first.stderr.count("\n") == 1
    assert (second.returncode, second.stderr) == (first.returncode, "")


def test_whoever_takes_no_line_on_standard_error_changes_no_exit_code(site: Deployment) -> None:
    (site.folder / "q.db").rename(site.folder / "none.db")
    site.worker(env=sqlite(site))
    site.age_outages(600)
    (site.folder / "none.db").rename(site.folder / "q.db")
    with open("/dev/full", "w") as full:
        line = [site.python, str(site.folder / "worker.py")]
        assert subprocess.run(line, env=sqlite(site), stderr=full).returncode == 0


@pytest.mark.usefixtures("bound_by_rights")
def test_a_folder_that_cannot_be_entered_fails_no_run(site: Deployment) -> None:
    var = site.folder / "var"
    var.chmod(0)
    try:
        assert_silent(site.worker("--slots", 0, env=sqlite(site)))
    finally:
        var.chmod(0o700)
