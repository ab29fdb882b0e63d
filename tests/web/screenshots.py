"""Pictures of the status page for the documents: `make screenshots`, or `make screenshots ARGS=FOLDER` elsewhere.

docs/pictures/ gets VIEW-WIDTH-SCHEME.png of the views that the documents show, another folder those of all views.
"""

from __future__ import annotations

import base64
import struct
import sys
import tempfile
import zlib
from itertools import product
from pathlib import Path

from tests.support.browser import Browser
from tests.support.deployment import ROOT, Deployment
from tests.web.sites import VIEWS, PageQueue, fill_shop, sign_in

PICTURES = ROOT / "docs" / "pictures"
SHOWN = ("overview",)
"""What the documents show: pictures are the larger part of a repository."""
SIZES = {360: 780, 1440: 900}
"""Heights by widths."""
SHOWN_ROWS = {360: 1116, 1440: 1620}
"""So high are the documents' pictures at most, by widths: what follows on the page is left out."""
SCHEMES = ("light", "dark")
KEPT, NEAR = 16, 600
"""So many colours stay as they are: of grounds and letters. Others that differ by less, as the sum of squares, become
the one that is more frequent."""
COUNT_COLORS = """
return (async (data, kept, near) => {
  const image = await createImageBitmap(new Blob([Uint8Array.from(atob(data), one => one.charCodeAt(0))]));
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) { counts.set(pixel, (counts.get(pixel) || 0) + 1); }
  const colors = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a)), palette = [];
  const parts = color => [color & 255, color >> 8 & 255, color >> 16 & 255];
  const distance = (a, b) => parts(a).reduce((sum, part, n) => sum + (part - parts(b)[n]) ** 2, 0);
  const nearer = color => (best, one, n) => distance(one, color) < distance(palette[best], color) ? n : best;
  for (const color of colors) {
    const isNew = palette.every(one => distance(one, color) >= near);
    if (palette.length < kept || (isNew && palette.length < 256)) { palette.push(color); }
  }
  const places = new Map(colors.map(color => [color, palette.reduce(nearer(color), 0)]));
  let text = "";
  for (const pixel of pixels) { text += String.fromCharCode(places.get(pixel)); }
  return [image.width, image.height, palette.map(parts), btoa(text)];
})(...arguments)
"""
"""In the browser, as Python's own library reads no pictures: the size, the palette, and each pixel's place in it."""


def main(folder: Path = PICTURES) -> None:
    views = {name: link for name, link in VIEWS.items() if folder != PICTURES or name in SHOWN}
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, Browser(Path(place)) as browser:
        site = PageQueue(Deployment(Path(place)), "sqlite:///var/taskserver.db")
        fill_shop(site)
        with site.served() as website:
            sign_in(browser, website.url)
            _take_all(browser, folder, {name: f"{website.url}/{link}" for name, link in views.items()})
        if folder != PICTURES:
            file = Path(place) / "queue.html"
            assert site.client("page", "--output", file).returncode == 0
            _take_all(browser, folder, {"file": file.as_uri()})


def _take_all(browser: Browser, folder: Path, urls: dict[str, str]) -> None:
    for (width, height), scheme, (name, url) in product(SIZES.items(), SCHEMES, urls.items()):
        browser.resize(width, height, mobile=width < 600)
        browser.prefer(color_scheme=scheme)
        browser.open(url)
        path = folder / f"{name}-{width}-{scheme}.png"
        browser.screenshot(path)
        _shrink(path, browser, SHOWN_ROWS[width] if folder == PICTURES else sys.maxsize)
        print(f"{path}: {path.stat().st_size:,} bytes")


def _shrink(path: Path, browser: Browser, rows: int) -> None:
    """Write a PNG anew with few colours, as a page of text has them, and so many rows at most."""
    content = base64.b64encode(path.read_bytes()).decode()
    width, height, palette, places = browser.script(COUNT_COLORS, content, KEPT, NEAR)
    pixels, height = base64.b64decode(places), min(height, rows)
    lines = b"".join(b"\0" + pixels[y * width : (y + 1) * width] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    colors = b"".join(map(bytes, palette))
    chunks = [(b"IHDR", header), (b"PLTE", colors), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
