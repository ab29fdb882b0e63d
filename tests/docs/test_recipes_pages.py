"""The pages with functions to paste, followed from top to bottom; the other files here prove what these do."""

from __future__ import annotations

from pathlib import Path

import PIL
import pytest
from PIL import Image

from tests.support.documents import blocks, sections
from tests.support.reader import Reader
from tests.support.work import LETTERS, PHP, PROGRAMS, RECIPES, WORDPRESS

FOLLOWED = {page: blocks(page) for page in (LETTERS, WORDPRESS)} | {
    section: found for page in (PHP, RECIPES) for section, found in sections(page)
}


@pytest.fixture
def installed(reader: Reader) -> Reader:
    reader.make_users()
    reader.install()
    reader.adds_to_tasks = True
    (reader.folder / "tasks.py").write_text("def greet(name): ...\n")
    (reader.folder / "programs.py").write_text(PROGRAMS)
    return reader


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


BEFORE = {"Thumbnails": upload_a_picture, "A backup each night": make_a_site}
AFTER = {"A backup each night": drop_the_site}


@pytest.mark.parametrize("place", FOLLOWED)
def test_a_page_with_functions_to_paste_can_be_followed(installed: Reader, place: str) -> None:
    if place in BEFORE:
        BEFORE[place](installed)
    for block in FOLLOWED[place]:
        installed.follow(block)
    installed.assert_that_every_task_ran()
    if place in AFTER:
        AFTER[place](installed)
