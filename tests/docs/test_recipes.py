"""The pages with functions to paste: each is followed from top to bottom, and its functions do what it says."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import PIL
import pytest
from PIL import Image

from taskserver import Status
from tests.docs.conftest import outcome
from tests.support.documents import LETTERS, PHP, PROGRAMS, RECIPES, WORDPRESS, home, paste, sections
from tests.support.processes import end_of, is_alive, wait_until
from tests.support.queues import Queue
from tests.support.reader import Reader
from tests.support.servers import MySQLServer, without


def upload_a_picture(reader: Reader) -> None:
    pictures = reader.home / "public_html" / "pictures"
    pictures.mkdir()
    Image.new("RGB", (800, 600)).save(pictures / "beach.jpg")
    site_packages = Path(PIL.__file__).parents[1]
    for name in ("PIL", "pillow.libs"):
        if (site_packages / name).exists():
            (reader.folder / name).symlink_to(site_packages / name)


def make_a_site(reader: Reader) -> None:
    reader.execute(
        *(f"CREATE DATABASE you_{name}" for name in ("site", "trial")),
        *(f"GRANT ALL PRIVILEGES ON you_{name}.* TO 'you_worker'@'localhost'" for name in ("site", "trial")),
        "CREATE TABLE you_site.orders (customer VARCHAR(100)) DEFAULT CHARACTER SET utf8mb4",
        "INSERT INTO you_site.orders VALUES ('Grüße 🎉')",
    )


def drop_the_site(reader: Reader) -> None:
    try:
        assert reader.execute("SELECT customer FROM you_trial.orders") == (("Grüße 🎉",),)
    finally:
        reader.execute("DROP DATABASE you_site", "DROP DATABASE you_trial")


@pytest.mark.parametrize("page", [LETTERS, WORDPRESS, PHP, RECIPES])
def test_a_page_with_functions_to_paste_can_be_followed(reader: Reader, page: str) -> None:
    reader.make_users()
    reader.install()
    reader.adds_to_tasks = True
    (reader.folder / "tasks.py").write_text("def greet(name): ...\n")
    (reader.folder / "programs.py").write_text(PROGRAMS)
    if page == RECIPES:
        upload_a_picture(reader)
        make_a_site(reader)
    for _, section in sections(page):
        reader.empty_queue()
        for block in section:
            reader.follow(block)
        reader.assert_that_every_task_ran()
    if page == RECIPES:
        drop_the_site(reader)


# ---- a backup each night: what one can put back, and what is left when a backup fails


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


# ---- thumbnails


@pytest.fixture
def gallery(sqlite_queue: Queue) -> Path:
    """Its public_html, with a folder of pictures."""
    paste(sqlite_queue, f"{RECIPES}#Thumbnails", {})
    gallery = home(sqlite_queue) / "public_html"
    (gallery / "pictures").mkdir(parents=True)
    return gallery


def shrink(queue: Queue, picture: str) -> None:
    queue.server.add_task("tasks.make_thumbnail", [picture])
    queue.server.run()


def thumbnails(gallery: Path) -> list[str]:
    folder = gallery / "thumbnails"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def picture(size: tuple[int, int], format: str, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, "red" if mode != "P" else 3).save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("format", "mode"),
    [("JPEG", "RGB"), ("PNG", "RGBA"), ("GIF", "P")],
)
def test_a_picture_of_any_kind_becomes_a_small_one(sqlite_queue: Queue, gallery: Path, format: str, mode: str) -> None:
    (gallery / "pictures" / "beach").write_bytes(picture((1200, 600), format, mode))
    shrink(sqlite_queue, "beach")
    assert sqlite_queue.rows() == []
    assert thumbnails(gallery) == ["beach.jpg"]
    with Image.open(gallery / "thumbnails" / "beach.jpg") as made:
        assert (made.size, made.format, made.mode) == ((400, 200), "JPEG", "RGB")
    assert (gallery / "thumbnails" / "beach.jpg").stat().st_mode & 0o444 == 0o444  # the web server is another account


def test_a_picture_stands_as_the_camera_was_held(sqlite_queue: Queue, gallery: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    (gallery / "pictures" / "beach").write_bytes(picture((1200, 600), "JPEG", exif=turned))
    shrink(sqlite_queue, "beach")
    with Image.open(gallery / "thumbnails" / "beach.jpg") as made:
        assert made.size == (200, 400)


@pytest.mark.parametrize(
    ("uploaded", "status", "error"),
    [
        (picture((8000, 8000), "PNG", "1"), Status.FATAL, "Fatal: upload is too big: 8000 x 8000"),
        (b"<?php echo 'no picture';", Status.FATAL, "Fatal: upload is not a picture"),
        (picture((1200, 600), "JPEG")[:-1000], Status.ERROR, "OSError: image file is truncated"),
    ],
    ids=["too big", "no picture", "half of one"],
)
def test_what_is_no_picture_harms_nothing_and_half_a_picture_is_tried_again(
    sqlite_queue: Queue, gallery: Path, uploaded: bytes, status: Status, error: str
) -> None:
    (gallery / "pictures" / "upload").write_bytes(uploaded)
    shrink(sqlite_queue, "upload")
    assert sqlite_queue.statuses() == [status]
    assert sqlite_queue.first_lines()[0].startswith(error)
    assert thumbnails(gallery) == []


@pytest.mark.parametrize("picture", ["../../secret", "link"])
def test_a_row_names_no_picture_outside_of_the_folder(sqlite_queue: Queue, gallery: Path, picture: str) -> None:
    (home(sqlite_queue) / "secret").touch()
    (gallery / "pictures" / "link").symlink_to(home(sqlite_queue) / "secret")
    shrink(sqlite_queue, picture)
    assert sqlite_queue.statuses() == [Status.FATAL]
    assert "is not a file in" in sqlite_queue.first_lines()[0]


# ---- programs.py: a program ends with its task, and the task says what it said


BELOW = """

def do(*args):
    return run(*args)


def plant():
    inner = f"sleep 600 & echo $! $$ >> {HERE}/pids; wait"
    run(["sh", "-c", f"sh -c '{inner}' & sleep 600 & echo $! $$ >> {HERE}/pids; wait"])


@taskserver.task(timeout=1.5)
def hasty():
    plant()
"""


@pytest.fixture
def queue(sqlite_queue: Queue) -> Queue:
    paste(sqlite_queue, f"{RECIPES}#A program", {}, slice(1, None), BELOW)
    return sqlite_queue


# ---- what ends it


def planted(queue: Queue) -> list[int]:
    """The program, what it started, and what that started: four processes."""
    path = queue.folder / "pids"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["timeout", "cancelled"])
def test_whatever_ends_a_task_ends_all_that_its_program_started(queue: Queue, is_cancelled: bool) -> None:
    queue.add("tasks.plant" if is_cancelled else "tasks.hasty")
    worker = queue.deployment.popen("worker.py", env={"TASKSERVER_LEASE": "1"})
    wait_until(lambda: len(planted(queue)) == 4)
    assert all(map(is_alive, planted(queue)))
    if is_cancelled:
        assert queue.server.cancel(1) == 1
    end_of(worker)
    wait_until(lambda: not any(map(is_alive, planted(queue))))
    assert queue.statuses() == [Status.CANCELLED if is_cancelled else Status.ERROR]


# ---- what it said


def test_a_task_has_what_its_program_printed_or_its_code_and_its_last_words(queue: Queue) -> None:
    queue.deployment.write_env(TASKSERVER_DSN=queue.dsn, TASKSERVER_MODE="mark")
    said = ["sh", "-c"]
    assert outcome(queue, "do", ["cat"], "Grüße 🎉\n" * 2000) == "Grüße 🎉\n" * 2000
    failed = "RuntimeError: sh ended with code"
    assert outcome(queue, "do", [*said, "echo out; echo no such picture >&2; exit 3"]) == f"{failed} 3: no such picture"
    assert outcome(queue, "do", [*said, "kill -9 $$"]) == f"{failed} -9: "
    assert str(outcome(queue, "do", [*said, "seq 100000 >&2; exit 1"])).endswith(" 99999 100000")
    assert "No such file or directory: 'no-such-program'" in str(outcome(queue, "do", ["no-such-program"]))


@pytest.mark.parametrize("name", ["tasks.run", "tasks.subprocess.run"])
def test_a_row_cannot_start_a_program_by_its_name(queue: Queue, name: str) -> None:
    made = queue.folder / "made"
    queue.add(name, f'[["touch", "{made}"]]')
    queue.server.run()
    assert queue.statuses() == [Status.FATAL]
    assert not made.exists()
