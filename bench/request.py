"""What does it cost a web request to add a task? The same page with and without, on a kept connection and on a new one.

The page does nothing else, so the ratio is the worst that a page can have; what is added, in milliseconds, is what any
page pays. The lines of the bare driver and of PHP are there to be compared with ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from urllib.request import urlopen

from taskserver import TaskServer
from tests.support.servers import find_program
from tests.support.websites import php_website

from .measure import Line, line_of, seconds
from .place import Place, environment
from .rows import count

HERE = Path(__file__).parent
PYTHON_PAGE = HERE / "request_page.py"
PHP_PAGE = HERE / "request.php"
WAYS = {
    "ours-kept": "TaskServer, kept connection",
    "ours-new": "TaskServer, connection a request",
    "driver-kept": "bare PyMySQL, kept connection",
    "driver-new": "bare PyMySQL, connection a request",
}
PHP_WAYS = {"kept": "PDO, persistent connection", "new": "PDO, connection a request"}


def request(place: Place) -> Iterator[Line]:
    """A WSGI page, a page of PHP, and a CGI script."""
    folder = str(place.deployment("request", table="bench_request"))
    with TaskServer(place.dsn, table="bench_request") as server:
        server.create_tables()
    arguments = [folder, str(place.port)]
    with _python_server(arguments) as url:
        for way, name in WAYS.items():
            yield _compare(place, f"request, WSGI: {name}", partial(_visit, url), way, place.size(50, 3))
    if php := find_program("php"):
        with _php_server(php, place) as url:
            for way, name in PHP_WAYS.items():
                yield _compare(place, f"request, PHP: {name}", partial(_visit, url), way, place.size(50, 3))
    for way in ("ours-new", "driver-new"):
        name = f"request, CGI: {WAYS[way].partition(',')[0]}"
        yield _compare(place, name, partial(_run_cgi, arguments), way, place.size(3, 1))


def _compare(place: Place, name: str, ask: Callable[[str], None], way: str, requests: int) -> Line:
    """Milliseconds a request, of this way and of the page that adds nothing: medians of requests in turn."""
    place.sql("TRUNCATE TABLE bench_request")
    for warm_up in (way, "nothing"):
        ask(warm_up)
    taken = []
    for _ in range(place.pairs):
        times = [(seconds(partial(ask, way)), seconds(partial(ask, "nothing"))) for _ in range(requests)]
        ours, floor = (median(side) * 1_000 for side in zip(*times, strict=True))
        taken.append((ours, floor))
    if (added := count(place, "bench_request")) != requests * place.pairs + 1:
        raise SystemExit(f"{name}: {added} tasks were added instead of {requests * place.pairs + 1}")
    return line_of(name, taken, unit="ms")


def _visit(url: str, way: str) -> None:
    with urlopen(f"{url}/{way}") as answer:
        _must_be_the_answer(answer.read())


def _run_cgi(arguments: list[str], way: str) -> None:
    command = [sys.executable, str(PYTHON_PAGE), way, *arguments]
    env = environment() | {"GATEWAY_INTERFACE": "CGI/1.1"}
    _must_be_the_answer(subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout)


def _must_be_the_answer(text: bytes) -> None:
    if not text.endswith(b"Thank you!"):
        raise SystemExit(f"a page answered {text.decode()}")


@contextmanager
def _python_server(arguments: list[str]) -> Iterator[str]:
    command = [sys.executable, str(PYTHON_PAGE), "serve", *arguments]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def _php_server(php: str, place: Place) -> Iterator[str]:
    folder = place.folder / "php"
    folder.mkdir(exist_ok=True)
    page = PHP_PAGE.read_text(encoding="utf-8").replace("port=3306", f"port={place.port}")
    page = page.replace("'root', ''", f"'root', '{os.environ['MYSQL_PWD']}'")
    (folder / "index.php").write_text(page, encoding="utf-8")
    with php_website(php, folder) as website:
        yield website.url
