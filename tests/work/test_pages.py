"""The pages of docs/work, each followed from top to bottom; the other files here prove what their functions do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import PIL
import pytest
from PIL import Image

from tests.support.deployment import ROOT
from tests.support.documents import blocks
from tests.support.mail import MailServer
from tests.support.reader import Reader
from tests.support.servers import MySQLServer
from tests.support.work import FOLDER, PROGRAMS

PAGES = sorted(path.name for path in (ROOT / FOLDER).glob("*.md") if path.name != "README.md")


@pytest.fixture
def reader(tmp_path: Path, mysql_server: MySQLServer, php: str, mail: MailServer) -> Iterator[Reader]:
    with closing(Reader(tmp_path, mysql_server, php)) as reader:
        reader.mail_port = mail.port
        reader.make_users()
        reader.install()
        reader.adds_to_tasks = True
        (reader.folder / "tasks.py").write_text("")
        (reader.folder / "programs.py").write_text(PROGRAMS)
        yield reader


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


def nothing(reader: Reader) -> None:
    """The page needs and leaves no more."""


BEFORE: dict[str, Callable[[Reader], None]] = {"thumbnails.md": upload_a_picture, "backup.md": make_a_site}
AFTER: dict[str, Callable[[Reader], None]] = {"backup.md": drop_the_site}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_of_real_work_can_be_followed_from_top_to_bottom(reader: Reader, page: str) -> None:
    BEFORE.get(page, nothing)(reader)
    for block in blocks(f"{FOLDER}/{page}"):
        reader.follow(block)
    reader.assert_that_every_task_ran()
    AFTER.get(page, nothing)(reader)
