"""The thumbnails of docs/work/recipes.md: whole pictures, upright and small, of whatever was uploaded."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import pytest
from PIL import Image

from taskserver import Status
from tests.support.queues import Queue
from tests.support.work import RECIPES, home, paste


@pytest.fixture
def site(sqlite_queue: Queue) -> Path:
    """Its public_html, with a folder of pictures."""
    paste(sqlite_queue, f"{RECIPES}#Thumbnails", {})
    site = home(sqlite_queue) / "public_html"
    (site / "pictures").mkdir(parents=True)
    return site


def shrink(queue: Queue, picture: str) -> None:
    queue.server.add_task("tasks.make_thumbnail", [picture])
    queue.server.run()


def thumbnails(site: Path) -> list[str]:
    folder = site / "thumbnails"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def picture(size: tuple[int, int], format: str, mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, "red" if mode != "P" else 3).save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("format", "mode"),
    [("JPEG", "RGB"), ("PNG", "RGBA"), ("GIF", "P")],
)
def test_a_picture_of_any_kind_becomes_a_small_one(sqlite_queue: Queue, site: Path, format: str, mode: str) -> None:
    (site / "pictures" / "beach").write_bytes(picture((1200, 600), format, mode))
    shrink(sqlite_queue, "beach")
    assert sqlite_queue.rows() == []
    assert thumbnails(site) == ["beach.jpg"]
    with Image.open(site / "thumbnails" / "beach.jpg") as made:
        assert (made.size, made.format, made.mode) == ((400, 200), "JPEG", "RGB")
    assert (site / "thumbnails" / "beach.jpg").stat().st_mode & 0o444 == 0o444  # the web server is another account


def test_a_picture_stands_as_the_camera_was_held(sqlite_queue: Queue, site: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    (site / "pictures" / "beach").write_bytes(picture((1200, 600), "JPEG", exif=turned))
    shrink(sqlite_queue, "beach")
    with Image.open(site / "thumbnails" / "beach.jpg") as made:
        assert made.size == (200, 400)


def bomb(width: int, height: int) -> bytes:
    """A PNG of some bytes that claims to have so many pixels."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(b"")),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("uploaded", "status", "error"),
    [
        (bomb(8000, 8000), Status.FATAL, "Fatal: upload is too big: 8000 x 8000"),
        (b"<?php echo 'no picture';", Status.FATAL, "Fatal: upload is not a picture"),
        (picture((1200, 600), "JPEG")[:-1000], Status.ERROR, "OSError: image file is truncated"),
    ],
    ids=["too big", "no picture", "half of one"],
)
def test_what_is_no_picture_harms_nothing_and_half_a_picture_is_tried_again(
    sqlite_queue: Queue, site: Path, uploaded: bytes, status: Status, error: str
) -> None:
    (site / "pictures" / "upload").write_bytes(uploaded)
    shrink(sqlite_queue, "upload")
    assert sqlite_queue.statuses() == [status]
    assert sqlite_queue.first_lines()[0].startswith(error)
    assert thumbnails(site) == []


@pytest.mark.parametrize("picture", ["../../secret", "link"])
def test_a_row_names_no_picture_outside_of_the_folder(sqlite_queue: Queue, site: Path, picture: str) -> None:
    (home(sqlite_queue) / "secret").touch()
    (site / "pictures" / "link").symlink_to(home(sqlite_queue) / "secret")
    shrink(sqlite_queue, picture)
    assert sqlite_queue.statuses() == [Status.FATAL]
    assert "is not a file in" in sqlite_queue.first_lines()[0]
