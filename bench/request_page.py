"""The pages of bench/request.py: the same answer with and without a task added, as a WSGI server and as a CGI script.

    request_page.py serve FOLDER PORT     prints the port it listens on; /WAY is a page
    request_page.py WAY FOLDER PORT       answers once, as a CGI script does

The ways, by taskserver and by the bare driver: nothing, ours-kept, ours-new, driver-kept, driver-new.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

TASK = "tasks.nothing"
TEXT = '{"to":"reader@example.org"}'
INSERT = "INSERT INTO bench_request (task, args, group_id, priority) VALUES (%s, %s, %s, %s)"


def main(way: str, folder: str, port: int) -> None:
    sys.path.insert(0, folder)
    ways = make_ways(folder, port)
    if way == "serve":
        serve(ways)
    ways[way]()
    sys.stdout.write("Content-Type: text/plain\r\n\r\nThank you!")


def make_ways(folder: str, port: int) -> dict[str, Callable[[], object]]:
    kept_server, kept_connection = cache(lambda: new_server(folder)), cache(lambda: connect(port))

    def ours_new() -> None:
        with new_server(folder) as server:
            add_to(server)

    def driver_new() -> None:
        connection = connect(port)
        insert_by(connection)
        connection.close()

    return {
        "nothing": lambda: None,
        "ours-kept": lambda: add_to(kept_server()),
        "ours-new": ours_new,
        "driver-kept": lambda: insert_by(kept_connection()),
        "driver-new": driver_new,
    }


def new_server(folder: str) -> Any:
    """Imported when it is used: a CGI script that adds nothing does not pay for it."""
    from taskserver import TaskServer

    return TaskServer.from_env(folder)


def add_to(server: Any) -> None:
    server.add_task(TASK, {"to": "reader@example.org"}, group_id=3, priority=10)


def connect(port: int) -> Any:
    import pymysql

    return pymysql.connect(
        host="127.0.0.1",
        port=port,
        user="root",
        password=os.environ["MYSQL_PWD"],
        database="bench",
        charset="utf8mb4",
        autocommit=True,
        ssl_disabled=True,
    )


def insert_by(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(INSERT, (TASK, TEXT, 3, 10))


def serve(ways: dict[str, Callable[[], object]]) -> None:
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        ways[environ["PATH_INFO"].lstrip("/")]()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"Thank you!"]

    server = make_server("127.0.0.1", 0, application, handler_class=Quiet)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
