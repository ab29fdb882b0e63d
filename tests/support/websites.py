"""Websites: PHP's and Python's own web servers, gunicorn, Apache, a CGI script; PHP pages; and the files of examples/.

An example runs as it lies in the repository, but for the places that its user edits too: folders, user, password.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from email import message_from_bytes
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, ProxyHandler, build_opener

from tests.support.deployment import ROOT
from tests.support.hosts import as_user, open_folder, own
from tests.support.postgresql import PostgreSQLServer
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.servers import MySQLServer, find_program, free_port, without

EXAMPLES = ROOT / "examples"
WEB_PASSWORD = "p@ss#1"
MINIMAL = {"PATH": os.defpath}
PHP_VALUES = """[
    ['to' => 'a@example.org', 'text' => $odd, 'größe' => ['tief' => [1, 2.0, -2.5, true, null]], 'list' => [],
     'dict' => new stdClass],
    [$odd, 9007199254740993],
    [],
]"""
"""The VALUES of shops.py; $odd is ODD_TEXT."""
PHP_OPTIONS = ["-d", "display_errors=0", "-d", "log_errors=1", "-d", "sendmail_path=/bin/true"]
"""Errors go to the log and not to the visitor, as on a host; and no letter leaves the machine."""

SERVE_WSGI = """
import sys
from importlib import import_module
from wsgiref.simple_server import make_server

sys.path.insert(0, sys.argv[1])
server = make_server("127.0.0.1", int(sys.argv[3]), import_module(sys.argv[2]).application)
print("serving", flush=True)
server.serve_forever()
"""


def example(name: str, folder: Path, edits: Mapping[str, str] | None = None) -> Path:
    """A file of examples/, copied to a folder and edited as its user would."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    for old, new in (edits or {}).items():
        assert old in text, f"examples/{name} has no {old}"
        text = text.replace(old, new)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def shown_in_comment(name: str) -> str:
    """The code that the opening comment of a PHP example shows: its lines that are indented."""
    comment = (EXAMPLES / name).read_text(encoding="utf-8").partition("*/")[0]
    return "\n".join(re.findall(r"^ \*     (.*)$", comment, re.MULTILINE))


class Answer(NamedTuple):
    """What a visitor gets."""

    status: int
    text: str


class Visitor:
    """Somebody with a browser's cookies, which go over http too: to this machine real browsers send them so."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.cookies = CookieJar(DefaultCookiePolicy(secure_protocols=("http",)))
        self._opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(self.cookies))

    def open(self, link: str = "", form: Mapping[str, str] | None = None) -> Answer:
        """Follow a link from this address, or send a form to it."""
        body = None if form is None else urlencode(form).encode()
        try:
            answer = self._opener.open(self.url + link, body, timeout=WAIT_SECONDS)
        except HTTPError as error:
            answer = error
        with answer:
            return Answer(answer.status, answer.read().decode())


class Website(NamedTuple):
    """A running web server."""

    url: str
    log_file: Path

    def visit(self, page: str = "", form: Mapping[str, str] | None = None) -> Answer:
        return Visitor(f"{self.url}/").open(page, form)

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")


@contextmanager
def _served(
    command: Sequence[str], port: int, log: Path, started: str, cwd: Path, env: Mapping[str, str]
) -> Iterator[Website]:
    """A web server, which logs this word once it listens: an answer might be another server's."""
    with open(log, "wb") as output:
        # A session of its own: as it ends, Apache ends all of its process group, other tests' Apaches, too.
        process = subprocess.Popen(
            command, cwd=cwd, env={**MINIMAL, **env}, stdout=output, stderr=output, start_new_session=True
        )
    website = Website(f"http://127.0.0.1:{port}", log)
    try:
        wait_until(lambda: process.poll() is not None or started in website.log)
        assert process.poll() is None, website.log
        yield website
    finally:
        process.terminate()  # so that it ends its own processes
        process.wait(WAIT_SECONDS)


def php_website(php: str, folder: Path, *options: str) -> AbstractContextManager[Website]:
    """PHP's own web server with the pages of a folder."""
    port = free_port()
    command = [php, *PHP_OPTIONS, *options, "-S", f"127.0.0.1:{port}", "-t", str(folder)]
    return _served(command, port, folder.parent / "php.log", "started", folder, {})


def wsgi_website(python: str, folder: Path, module: str) -> AbstractContextManager[Website]:
    """The `application` of a module, on the web server of Python's standard library."""
    port = free_port()
    command = [python, "-c", SERVE_WSGI, str(folder), module, str(port)]
    return _served(command, port, folder.parent / "wsgi.log", "serving", folder.parent, {})


def gunicorn_website(
    folder: Path, module: str, env: Mapping[str, str] | None = None
) -> AbstractContextManager[Website]:
    """The `application` of a module in a folder, in two processes under the Python of the tests."""
    port = free_port()
    options = [f"--bind=127.0.0.1:{port}", "--workers=2", "--graceful-timeout=1", "--no-control-socket"]
    command = [sys.executable, "-m", "gunicorn", *options, f"{module}:application"]
    return _served(command, port, folder.parent / "gunicorn.log", "Listening at", folder, env or {})


APACHE = """
ServerRoot "{state}"
DefaultRuntimeDir "{state}"
PidFile "{state}/pid"
ErrorLog "{log}"
ServerName 127.0.0.1
Listen 127.0.0.1:{port}
LoadModule mpm_prefork_module {modules}/mod_mpm_prefork.so
LoadModule authz_core_module {modules}/mod_authz_core.so
LoadModule mime_module {modules}/mod_mime.so
LoadModule cgi_module {modules}/mod_cgi.so
TypesConfig /dev/null
AddHandler cgi-script .cgi
DocumentRoot "{folder}"
<Directory "{folder}">
  Options ExecCGI
  Require all granted
</Directory>
"""


@contextmanager
def apache_website(folder: Path) -> Iterator[Website]:
    """A real Apache with the files of a folder, of which those in *.cgi are scripts.

    It runs as the user of tests/support/hosts.py, who must be able to enter the folder (`open_folder`) and what a
    script's first line names (`users_python`).
    """
    program = find_program("apache2") or without("apache2-bin is not installed")
    with open_folder() as state:
        log, config, port = state / "error.log", state / "apache.conf", free_port()
        log.touch()
        own(state, log)
        place = {"state": state, "log": log, "port": port, "folder": folder}
        config.write_text(APACHE.format(modules="/usr/lib/apache2/modules", **place))
        command = [*as_user(), program, "-f", str(config), "-DFOREGROUND"]
        with _served(command, port, log, "resuming normal operations", state, {}) as website:
            yield website


def run_cgi(script: Path, form: str | None) -> tuple[Answer, str]:
    """Runs a CGI script as a web server does, by its own first line; the answer, and what goes to the site's log."""
    script.chmod(0o755)
    head = {"GATEWAY_INTERFACE": "CGI/1.1", "SCRIPT_NAME": f"/cgi-bin/{script.name}", "REQUEST_METHOD": "GET"}
    body = (form or "").encode()
    if form is not None:
        head |= {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": str(len(body))}
    environ = {**MINIMAL, **head, "LC_ALL": "C"}
    ended = subprocess.run(
        [script], cwd=script.parent, env=environ, input=body, capture_output=True, timeout=WAIT_SECONDS
    )
    assert ended.returncode == 0, ended.stderr
    head_of_answer, _, text = ended.stdout.partition(b"\r\n\r\n")
    fields = message_from_bytes(head_of_answer)
    assert fields["Content-Type"] == "text/plain; charset=utf-8"
    return Answer(int(fields["Status"].split()[0]), text.decode()), ended.stderr.decode()


class Page:
    """A PHP page that a test writes, run by PHP's command line."""

    def __init__(self, php: str, folder: Path, server: MySQLServer | PostgreSQLServer, database: str) -> None:
        self._php = php
        self._path = folder / "page.php"
        self.place: dict[str, Any] = {"host": server.host, "port": server.port, "socket": None, "database": database}
        self.place |= {"user": server.user, "password": server.password}

    def run(self, code: str, tasks: Any = None, flags: str = "0") -> str:
        """Runs PHP code that has $at, $tasks and $flags; warnings are errors. What it prints."""
        self._path.write_text(
            "<?php\n"
            "set_error_handler(function ($number, $text) { throw new ErrorException($text); });\n"
            "$given = json_decode(stream_get_contents(STDIN));\n"
            f"$at = $given->at; $tasks = $given->tasks; $flags = {flags};\n{code}",
            encoding="utf-8",
        )
        given = json.dumps({"at": self.place, "tasks": tasks or []})
        ended = subprocess.run([self._php, str(self._path)], input=given, capture_output=True, text=True)
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
        return ended.stdout


@contextmanager
def web_user(server: MySQLServer, database: str, *tables: str) -> Iterator[str]:
    """The name of a database user who may INSERT into these tables and nothing else."""
    name = database[:16]
    server.execute(
        f"CREATE USER '{name}'@'%' IDENTIFIED BY '{WEB_PASSWORD}'",
        *(f"GRANT INSERT ON `{database}`.{table} TO '{name}'@'%'" for table in tables),
    )
    try:
        server.meet(name, WEB_PASSWORD)
        yield name
    finally:
        server.execute(f"DROP USER '{name}'@'%'")


# ---- WordPress, Laravel, Django

WORDPRESS_FOLDERS = [Path("/usr/share/wordpress"), ROOT / ".servers" / "wordpress" / "usr" / "share" / "wordpress"]
WP_CONFIG = """<?php
define('DB_NAME', '{database}');
define('DB_USER', '{user}');
define('DB_PASSWORD', '{password}');
define('DB_HOST', '{host}:{port}');
define('DB_CHARSET', 'utf8mb4');
define('WP_HTTP_BLOCK_EXTERNAL', true);
define('DISABLE_WP_CRON', true);
$table_prefix = 'wp_';
defined('ABSPATH') || define('ABSPATH', __DIR__ . '/');
require ABSPATH . 'wp-settings.php';
"""
LOAD_WORDPRESS = """<?php
$_SERVER['HTTP_HOST'] = '127.0.0.1';
$_SERVER['REQUEST_URI'] = '/';
function wp_mail() { return true; }
"""
INSTALL_WORDPRESS = """
define('WP_INSTALLING', true);
require 'wp-load.php';
require ABSPATH . 'wp-admin/includes/upgrade.php';
wp_install('A site', 'admin', 'a@example.org', false, '', 'password');
"""


class WordPress:
    """An installed WordPress with our plugin, in the queue's own database."""

    def __init__(self, folder: Path, php: str, place: Mapping[str, Any]) -> None:
        program = next((folder for folder in WORDPRESS_FOLDERS if (folder / "wp-settings.php").exists()), None)
        if program is None:
            without("WordPress is not there")
        self.folder = folder
        self._php = php
        for file in program.glob("*.php"):
            (folder / file.name).write_bytes(file.read_bytes())
        for name in ("wp-includes", "wp-admin"):
            (folder / name).symlink_to(program / name)
        (folder / "wp-config.php").write_text(WP_CONFIG.format(**place))
        self._run(INSTALL_WORDPRESS)
        example("wordpress.php", folder / "wp-content" / "mu-plugins")

    def call(self, code: str, odd: str = "") -> str:
        """Code in WordPress, by PHP's command line, that has $odd. What it prints."""
        given = f"$odd = json_decode(<<<'E'\n{json.dumps(odd)}\nE);\n"
        return self._run(f"require 'wp-load.php';\n{given}{code}")

    def _run(self, code: str) -> str:
        script = self.folder / "script.php"
        script.write_text(LOAD_WORDPRESS + code, encoding="utf-8")
        ended = subprocess.run([self._php, str(script)], cwd=self.folder, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout
        return ended.stdout


LARAVEL_PAGE = """<?php
require '%(illuminate)s';
require '%(example)s';

use Illuminate\\Support\\Facades\\DB;

$app = new Illuminate\\Container\\Container;
Illuminate\\Support\\Facades\\Facade::setFacadeApplication($app);
$manager = new Illuminate\\Database\\Capsule\\Manager($app);
$manager->addConnection(json_decode('%(place)s', true));
$app->instance('db', $manager->getDatabaseManager());

$customer = $_POST['customer'];
$odd = $customer;
%(code)s
"""

DJANGO_MODELS = """
from django.db import models

class Order(models.Model):
    customer = models.CharField(max_length=100)

    class Meta:
        db_table = "orders"
"""
DJANGO_SITE = """
import logging
from django.conf import settings

logging.basicConfig()
settings.configure(
    SECRET_KEY="of a test", ALLOWED_HOSTS=["127.0.0.1"], INSTALLED_APPS=["shop"], ROOT_URLCONF="site_wsgi",
    USE_TZ=True, LOGGING_CONFIG=None, DATABASES={{"default": {place!r}}},
)
from django.core.wsgi import get_wsgi_application

application = get_wsgi_application()
from django.urls import path
from django_page import order

urlpatterns = [path("order", order)]
"""


def django_site(folder: Path, place: Mapping[str, Any]) -> Path:
    """Makes a folder a Django site with django_page.py, whose database is at this place."""
    (folder / "shop").mkdir()
    (folder / "shop" / "models.py").write_text(DJANGO_MODELS)
    (folder / "site_wsgi.py").write_text(DJANGO_SITE.format(place=dict(place)))
    example("django_page.py", folder)
    return folder
