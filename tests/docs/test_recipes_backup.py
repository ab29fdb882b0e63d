"""The backup of docs/work/recipes.md: what one can put back, and what is left when a backup fails."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskserver import Status
from tests.conftest import without
from tests.support.queues import Queue
from tests.support.servers import MySQLServer
from tests.support.work import RECIPES, home, paste

PASSWORD = "back # up"
CNF = "[client]\nhost={host}\nport={port}\nuser={user}\npassword='{password}'\n"


@pytest.fixture
def user(mysql_server: MySQLServer, mysql_dsn: str) -> Iterator[str]:
    """Has the rights that the page names, and no other."""
    database = mysql_dsn.rpartition("/")[2]
    name = database[:16]
    mysql_server.execute(
        f"CREATE USER '{name}'@'%' IDENTIFIED BY '{PASSWORD}'",
        f"GRANT SELECT, SHOW VIEW, TRIGGER ON `{database}`.* TO '{name}'@'%'",
    )
    yield name
    mysql_server.execute(f"DROP USER '{name}'@'%'")


@pytest.fixture
def site(sqlite_queue: Queue, mysql_server: MySQLServer, mysql_dsn: str, user: str) -> str:
    """The name of a database that is to be saved."""
    dump = shutil.which("mysqldump") or shutil.which("mariadb-dump") or without("mysqldump is not installed")
    database = mysql_dsn.rpartition("/")[2]
    login = home(sqlite_queue) / "taskserver" / "backup.cnf"
    login.parent.mkdir()
    login.write_text(CNF.format(host=mysql_server.host, port=mysql_server.port, user=user, password=PASSWORD))
    noting = home(sqlite_queue) / "dump"
    noting.write_text(f'#!/bin/sh\necho "$@" > {home(sqlite_queue)}/words\nexec {dump} "$@"\n')
    noting.chmod(0o755)
    paste(
        sqlite_queue,
        f"{RECIPES}#A backup each night",
        {'"you_site"': f'"{database}", "gone"', '"mysqldump"': f'"{noting}"'},
    )
    mysql_server.execute(
        "CREATE TABLE orders (customer VARCHAR(100)) DEFAULT CHARACTER SET utf8mb4",
        "INSERT INTO orders VALUES ('Grüße 🎉')",
        "CREATE VIEW customers AS SELECT customer FROM orders",
        "CREATE TRIGGER tidy BEFORE INSERT ON orders FOR EACH ROW SET NEW.customer = TRIM(NEW.customer)",
        database=database,
    )
    return database


def back_up(queue: Queue, database: str) -> None:
    queue.add("tasks.back_up", json.dumps([database]))
    queue.server.run()


def backups(queue: Queue, database: str) -> list[Path]:
    return sorted((home(queue) / "backups" / database).iterdir())


def test_a_backup_has_the_rows_nobody_else_may_read_it_and_the_newest_fourteen_stay(
    sqlite_queue: Queue, site: str
) -> None:
    back_up(sqlite_queue, site)
    assert sqlite_queue.rows() == []
    (saved,) = backups(sqlite_queue, site)
    dump = gzip.decompress(saved.read_bytes()).decode()
    assert all(words in dump for words in ("Grüße 🎉", "VIEW `customers`", "TRIGGER"))
    assert saved.parent.stat().st_mode & 0o077 == 0
    words = (home(sqlite_queue) / "words").read_text()
    assert words.endswith(f"--single-transaction --no-tablespaces {site}\n")
    assert PASSWORD not in words
    saved.unlink()
    for day in range(10, 30):
        (saved.parent / f"2026-01-{day}-033000.sql.gz").touch()
    back_up(sqlite_queue, site)
    *older, _ = [path.name for path in backups(sqlite_queue, site)]
    assert older == [f"2026-01-{day}-033000.sql.gz" for day in range(17, 30)]


def test_a_backup_that_fails_says_why_and_leaves_the_others(sqlite_queue: Queue, site: str) -> None:
    back_up(sqlite_queue, site)
    before = backups(sqlite_queue, site)
    login = home(sqlite_queue) / "taskserver" / "backup.cnf"
    text = login.read_text()
    login.write_text(text.replace("password='", "password='wrong"))
    back_up(sqlite_queue, site)
    login.write_text(text)
    back_up(sqlite_queue, "gone")
    back_up(sqlite_queue, "mysql")
    assert sqlite_queue.statuses() == [Status.ERROR, Status.ERROR, Status.FATAL]
    wrong, gone, strange = sqlite_queue.first_lines()
    assert "ended with code 2: " in wrong
    assert "Access denied" in wrong
    assert "database 'gone'" in gone
    assert strange.startswith("Fatal: 'mysql' is not in ")
    assert backups(sqlite_queue, site) == before
    assert backups(sqlite_queue, "gone") == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is the full disk")
def test_a_full_disk_is_named_and_nothing_unfinished_stays(sqlite_queue: Queue, site: str) -> None:
    folder = home(sqlite_queue) / "backups" / site
    folder.mkdir(parents=True)
    (folder / "packed").symlink_to("/dev/full")
    back_up(sqlite_queue, site)
    assert sqlite_queue.statuses() == [Status.ERROR]
    assert re.search(r"No space left on device|errno:? 28", sqlite_queue.first_lines()[0], re.IGNORECASE)
    assert backups(sqlite_queue, site) == []
