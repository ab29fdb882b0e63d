"""Several --env: status, check, metrics, page and doctor show each queue by its name, even if another is away."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from taskserver import Finding, TaskServer
from taskserver.cli import worker
from taskserver.cli.commands import check as check_command
from tests.support.deployment import Deployment, run_here
from tests.support.rows import connection_of, execute

Ended = subprocess.CompletedProcess[str]
AWAY = "mysql://somebody:secret@127.0.0.1:1/mail"


class Queues:
    """shop.env and away.env in one folder, and the .env of another, news: all but `away` have tables."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.shop = self.write("shop.env", "sqlite:///shop.db")
        self.away = self.write("away.env", AWAY)
        self.news = self.write("news/.env", "sqlite:///news.db")
        for file in (self.shop, self.news):
            assert self.on(file)("init").returncode == 0

    def write(self, name: str, dsn: str, more: str = "") -> Path:
        file = self.deployment.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"TASKSERVER_DSN={dsn}\n{more}")
        file.chmod(0o600)
        (file.parent / "tasks.py").write_text("def note(): pass\n")
        return file

    def path(self, file: Path) -> Path:
        return file.parent / ("shop.db" if file == self.shop else "news.db")

    def add(self, file: Path, status: int = 0) -> None:
        self.sql(file, f"INSERT INTO jobs_queue (task, status, error_text) VALUES ('tasks.note', {status}, 'E: x')")

    def sql(self, file: Path, statement: str) -> None:
        with closing(connection_of(f"sqlite:///{self.path(file)}")) as connection:
            execute(connection, statement)

    def run(self, file: Path) -> None:
        with TaskServer(f"sqlite:///{self.path(file)}") as server:
            server.run()

    def on(self, *files: object) -> Callable[..., Ended]:
        """A command on these files."""
        named = [word for file in files for word in ("--env", file)]
        return lambda command, *words, **env: self.deployment.here(*named, command, *words, env=env)


@pytest.fixture
def queues(deployment: Deployment) -> Queues:
    return Queues(deployment)


# ---- names


def test_a_queue_is_named_by_its_file_or_folder_and_equal_names_are_paths(queues: Queues) -> None:
    other, hidden = queues.write("other/shop.env", AWAY), queues.write(".env.letters", AWAY)
    ended = queues.on(queues.shop, queues.news, other, hidden)("status", "--json")
    assert list(json.loads(ended.stdout)) == [str(queues.shop), "news", str(other), "letters"]


def test_a_file_that_is_named_twice_is_an_error(queues: Queues) -> None:
    ended = queues.on(queues.shop, queues.shop)("status")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"client.py: --env names {queues.shop} twice: name each file once\n"


def test_a_command_that_changes_a_queue_takes_one_env_wherever_it_stands(queues: Queues) -> None:
    for ended in (
        queues.on(queues.shop, queues.news)("add", "tasks.note"),
        queues.on(queues.shop)("add", "tasks.note", "--env", queues.news),
        queues.on(queues.shop)("init", "--env", queues.news),
        run_here(worker.main, queues.deployment.folder, "--env", queues.shop, "--env", queues.news),
    ):
        assert (ended.returncode, ended.stdout) == (2, "")
        assert "--env is given 2 times: only status, check, metrics, page and doctor take several" in ended.stderr
    found = json.loads(queues.on(queues.shop)("status", "--json", "--env", queues.news).stdout)
    assert [found[name]["total"]["new"] for name in ("shop", "news")] == [0, 0]


def test_an_environment_that_wins_over_a_file_is_an_error_of_that_queue(queues: Queues) -> None:
    table = queues.write("table.env", f"sqlite:///{queues.shop.parent}/shop.db", "TASKSERVER_TABLE=letters\n")
    both = queues.on(queues.shop, table)
    code, line = checked(both("check", TASKSERVER_TABLE="jobs_queue"))
    assert code == 3
    words = f"table: the environment wins over {table} for TASKSERVER_TABLE: unset TASKSERVER_TABLE for this command"
    assert line.startswith(f"TASKSERVER UNKNOWN: {words}; shop: no worker ran yet | 'shop ready'=0;")
    ended = both("doctor", TASKSERVER_TABLE="jobs_queue")
    assert (f"client.py: {words}\n" == ended.stderr, ended.returncode) == (True, 2)
    ended = queues.on(queues.shop, queues.news)("status", TASKSERVER_DSN=AWAY)
    assert (ended.returncode, ended.stderr.count("wins over")) == (2, 2)
    assert queues.on(queues.shop)("status", TASKSERVER_TABLE="jobs_queue").returncode == 0  # one file: as ever


# ---- status


def test_status_has_a_heading_for_each_and_the_worst_exit_code(queues: Queues) -> None:
    queues.add(queues.news)
    ended = queues.on(queues.away, queues.shop, queues.news)("status")
    assert (ended.returncode, re.findall("^== (.*) ==$", ended.stdout, re.MULTILINE)) == (1, ["away", "shop", "news"])
    assert re.search(r"== shop ==\njobs_queue in shop\.db, mode delete", ended.stdout)
    assert ended.stderr.startswith("client.py: away: 127.0.0.1:1/mail: Can't connect")
    assert "secret" not in ended.stderr
    assert queues.on(queues.shop, queues.news)("status").returncode == 0
    single = queues.on(queues.shop)("status").stdout
    assert single.strip() in ended.stdout
    assert "==" not in single


def test_status_in_json_is_one_object_by_name(queues: Queues) -> None:
    queues.add(queues.news)
    ended = queues.on(queues.away, queues.shop, queues.news)("status", "--json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, list(found)) == (1, ["away", "shop", "news"])
    assert found["away"]["level"] == "critical"
    assert "Can't connect" in found["away"]["words"]
    assert [found[name]["total"]["new"] for name in ("shop", "news")] == [0, 1]


# ---- check


def checked(ended: Ended) -> tuple[int, str]:
    """Its code, and its only line."""
    (line,) = ended.stdout.splitlines()
    return ended.returncode, line


def test_check_is_one_line_with_the_worst_first_and_its_code(queues: Queues) -> None:
    queues.run(queues.news)
    queues.add(queues.shop, status=4)
    code, line = checked(queues.on(queues.news, queues.shop, queues.away)("check"))
    assert code == 2
    words, _, performance = line.partition(" | ")
    assert re.fullmatch(
        r"TASKSERVER CRITICAL: away: 127\.0\.0\.1:1/mail: Can't connect [^;|]*; shop: [^;|]*1 fatal; news: 0 r[^;]*",
        words,
    )
    labels = re.findall(r"'(\w+ \w+)'=[\dU]", performance)
    assert labels == [f"{name} {label}" for name in ("news", "shop") for label in LABELS]
    found = json.loads(queues.on(queues.news, queues.shop, queues.away)("check", "--json").stdout)
    assert {name: one["level"] for name, one in found.items()} == {"news": "ok", "shop": "warning", "away": "critical"}


LABELS = ("ready", "age", "fatal", "lapsed", "silence")


def test_a_wrong_setting_hides_nothing_that_is_critical(queues: Queues) -> None:
    queues.run(queues.news)
    missing = queues.shop.with_name("gone.env")
    code, line = checked(queues.on(missing, queues.news)("check"))
    assert (code, line.startswith(f"TASKSERVER UNKNOWN: gone: there is no file {missing}")) == (3, True)
    assert "; news: 0 ready" in line
    code, line = checked(queues.on(missing, queues.away)("check"))
    assert (code, line.startswith("TASKSERVER CRITICAL: away: "), "; gone: there is no file" in line) == (2, True, True)


def test_check_mails_what_changed_in_each_queue(queues: Queues) -> None:
    for file in (queues.shop, queues.news):
        queues.run(file)
    mail = queues.on(queues.shop, queues.away, queues.news)
    ended = mail("check", "--mail")
    assert (ended.returncode, ended.stdout.count("\n")) == (2, 1)
    assert ended.stdout.startswith("TASKSERVER CRITICAL: away: 127.0.0.1:1/mail: ")
    for file in (queues.shop, queues.news):
        queues.add(file, status=4)
    said = mail("check", "--mail").stdout
    assert re.findall("^TASKSERVER .*", said, re.MULTILINE) == [
        *("TASKSERVER WARNING: shop: 1 fatal", "TASKSERVER WARNING: news: 1 fatal")
    ]
    assert f"--env {queues.shop} retry --error" in said
    assert mail("check", "--mail").stdout == ""  # not the outage either: once an hour
    assert queues.on(queues.news)("check", "--mail").stdout == ""  # its note is its own
    queues.sql(queues.news, "DELETE FROM jobs_queue")
    assert mail("check", "--mail").stdout.startswith("TASKSERVER OK: news: all is well again\n")


def test_no_mail_is_lost_if_the_output_is_full(queues: Queues) -> None:
    for file in (queues.shop, queues.news):
        queues.run(file)
        queues.add(file, status=4)
    for first in (queues.shop, queues.away):
        words = [
            sys.executable,
            str(queues.shop.with_name("client.py")),
            "--env",
            str(first),
            "--env",
            str(queues.news),
        ]
        with open("/dev/full", "w") as full:
            assert subprocess.run([*words, "check", "--mail"], stdout=full).returncode == 3
    assert "WARNING: news: 1 fatal" in queues.on(queues.shop, queues.news)("check", "--mail").stdout


def test_the_same_wrong_setting_is_reported_for_each_file(queues: Queues, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = [queues.write(f"{name}.env", "sqlite:///shop.db", "TASKSERVER_MODE=x\n") for name in ("one", "two")]
    for file in wrong:  # as two lines of a crontab do
        assert queues.on(file)("check", "--mail").stdout.startswith("TASKSERVER UNKNOWN: TASKSERVER_MODE is wrong")
    assert queues.on(*wrong)("check", "--mail").stdout == ""
    for file in wrong * 2:
        assert run_here(worker.main, queues.deployment.folder, "--env", file).returncode == 2
    assert capfd.readouterr().err.count("TASKSERVER_MODE is wrong") == 2


def test_a_finding_is_accepted_in_one_queue(queues: Queues) -> None:
    code, line = checked(queues.on(queues.shop, queues.news)("check", "--accept", "cron", "--reason", "x"))
    assert (code, line.split(": ")[1]) == (3, "--accept and --withdraw take one --env")


def test_queues_that_do_not_answer_are_waited_for_together(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_command, "CHECK_ANSWER_SECONDS", 1.0)
    with ExitStack() as stack:
        files = []
        for number in range(3):
            port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            files.append(queues.write(f"silent{number}.env", f"mysql://u:p@127.0.0.1:{port}/x"))
        began = time.monotonic()
        code, line = checked(queues.on(*files, queues.shop)("check"))
        seconds = time.monotonic() - began
    assert (code, line.count("silent")) == (2, 3)
    assert 1 <= seconds < 2


# ---- metrics


def test_metrics_are_one_text_with_the_queue_as_a_label(queues: Queues) -> None:
    queues.add(queues.news)
    files, target = (queues.shop, queues.away, queues.news), queues.deployment.folder / "x.prom"
    ended = queues.on(*files)("metrics", "--textfile", target)
    assert (ended.returncode, ended.stdout, ended.stderr.count("client.py: away: ")) == (1, "", 1)
    families = list(text_string_to_metric_families(target.read_text()))
    assert max(Counter(family.name for family in families).values()) == 1
    assert all("queue" in sample.labels for family in families for sample in family.samples)
    values = {
        (sample.name.removeprefix("taskserver_"), sample.labels["queue"], sample.labels.get("status")): sample.value
        for family in families
        for sample in family.samples
    }
    assert [values["up", name, None] for name in ("shop", "away", "news")] == [1, 0, 1]
    assert values["tasks", "news", "new"] == 1
    single = queues.on(queues.news)("metrics")
    assert (single.returncode, "queue=" in single.stdout, "taskserver_up 1.0\n" in single.stdout) == (0, False, True)


# ---- page


def test_the_page_has_a_section_for_each_queue_with_its_own_links(queues: Queues) -> None:
    queues.add(queues.news, status=4)
    target = queues.deployment.folder / "page.html"
    ended = queues.on(queues.shop, queues.away, queues.news)("page", "--output", target)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("client.py: away: 127.0.0.1:1/mail: Can't connect")
    text = target.read_text()
    assert re.findall('<li><a href="#queue-\\d-name">([^<]+)', text) == ["shop: warning", "away: away", "news: warning"]
    assert re.findall('<h1 id="queue-\\d-name">([^<]+)', text) == ["shop", "away", "news"]
    assert "<title>Away · taskserver</title>" in text
    ids = re.findall(r' id="([^"]+)"', text)
    assert max(Counter(ids).values()) == 1
    assert set(re.findall(r'(?:href="#|labelledby=")([^"]+)"', text)) <= set(ids)
    assert text.count("What the doctor finds") == 2
    assert "secret" not in text
    assert f"--env {queues.news} retry" in text


# ---- doctor


def test_the_doctor_examines_each_with_its_own_modules(queues: Queues) -> None:
    (queues.news.parent / "tasks.py").write_text("import nothing_like_this\n")
    ended = queues.on(queues.shop, queues.news)("doctor")
    shop, news = re.split("^== news ==$", ended.stdout, flags=re.MULTILINE)
    assert shop.startswith("== shop ==\n")
    assert (ended.returncode, "nothing_like_this" in shop, "nothing_like_this" in news) == (2, False, True)
    assert [part.splitlines()[-1].split(",")[0] for part in (shop, news)] == ["0 critical", "1 critical"]
    ended = queues.on(queues.shop, queues.away)("doctor", "--json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, {name: one["level"] for name, one in found.items()}) == (
        *(2, {"shop": "warning", "away": "critical"}),
    )


def test_ctrl_c_ends_the_command_and_not_one_queue(queues: Queues, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object, **named: object) -> Iterator[Finding]:
        raise KeyboardInterrupt

    monkeypatch.setattr("taskserver.health.doctor.examine", interrupted)
    ended = queues.on(queues.shop, queues.news)("doctor")
    assert (ended.returncode, ended.stdout) == (130, "== shop ==\n")
