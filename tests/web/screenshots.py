"""Pictures of the status page: `make screenshots`, or `make screenshots ARGS=FOLDER` for a folder of one's own.

The folder gets VIEW-WIDTH-SCHEME.png of all views, docs/pictures/ those that docs/page.md shows.
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

FOLDER = ROOT / "build" / "screenshots"
PICTURES = ROOT / "docs" / "pictures"
DOCUMENT = ROOT / "docs" / "page.md"
SIZES = {360: 780, 1440: 900}
"""Heights by widths."""
SHOWN_ROWS = {360: 1116, 1440: 1280}
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


def main(folder: Path = FOLDER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, Browser(Path(place)) as browser:
        site = PageQueue(Deployment(Path(place)), "sqlite:///var/taskserver.db")
        fill_shop(site)
        with site.served() as website:
            _take_all(browser, folder, {"sign-in": f"{website.url}/"})
            sign_in(browser, website.url)
            _take_all(browser, folder, {name: f"{website.url}/{link}" for name, link in VIEWS.items()})
        file = Path(place) / "queue.html"
        assert site.client("page", "--output", file).returncode == 0
        _take_all(browser, folder, {"file": file.as_uri()})
    print(f"all views are in {folder}")


def _take_all(browser: Browser, folder: Path, urls: dict[str, str]) -> None:
    shown = DOCUMENT.read_text(encoding="utf-8")
    for (width, height), scheme, (name, url) in product(SIZES.items(), SCHEMES, urls.items()):
        browser.resize(width, height, mobile=width < 600)
        browser.prefer(color_scheme=scheme)
        browser.open(url)
        path = folder / f"{name}-{width}-{scheme}.png"
        browser.screenshot(path)
        if f"({PICTURES.name}/{path.name})" in shown:
            picture = PICTURES / path.name
            picture.write_bytes(_shrunken(path, browser, SHOWN_ROWS[width]))
            print(f"{picture}: {picture.stat().st_size:,} bytes")


def _shrunken(path: Path, browser: Browser, rows: int) -> bytes:
    """A PNG with few colours, as a page of text has them, and so many rows at most."""
    content = base64.b64encode(path.read_bytes()).decode()
    width, height, palette, places = browser.script(COUNT_COLORS, content, KEPT, NEAR)
    pixels, height = base64.b64decode(places), min(height, rows)
    lines = b"".join(b"\0" + pixels[y * width : (y + 1) * width] for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    colors = b"".join(map(bytes, palette))
    chunks = [(b"IHDR", header), (b"PLTE", colors), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
