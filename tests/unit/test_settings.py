"""Settings from the environment and .env: which one wins, what is allowed, and errors without secrets."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from pathlib import Path

import pytest

from taskserver import TaskServer
from taskserver.cli import client
from taskserver.errors import SettingError
from taskserver.host import files
from taskserver.messages.text import shown
from taskserver.model.backoff import Backoff
from taskserver.settings import load as load_module
from taskserver.settings.dsn import Dsn
from taskserver.settings.load import Settings, hide_secrets, load_settings, program_folder, sources
from taskserver.settings.page import PAGE_SETTINGS, PageSettings, load_page_settings
from taskserver.settings.table import PAGE_KEYS, SETTINGS, RunPauses
from tests.support.deployment import run_here
from tests.support.processes import assert_one_line

DSN = "sqlite:///var/taskserver.db"
SECRET = "Hush4ever"


def load(folder: Path, **environ: str) -> Settings:
    """Settings by an environment alone (`table="x"` for TASKSERVER_TABLE) and whatever .env lies in the folder."""
    return load_settings(folder, {f"TASKSERVER_{key.upper()}": value for key, value in environ.items()})


def load_env_file(folder: Path, text: str) -> Settings:
    (folder / ".env").write_text(text)
    return load_settings(folder, {})


# ---- each key

RIGHT: dict[str, dict[str, object]] = {  # texts and what they mean
    "table": {"A" * 40: "A" * 40},
    "mode": {"mark": "mark"},
    "modules": {" größe._intern , shop.jobs.* ": ("größe._intern", "shop.jobs.*")},
    "max_attempts": {"1": 1},
    "backoff": {"fixed:86400": Backoff("fixed", 86400), "exponential:5m": Backoff("exponential", 300)},
    "lease": {"1": 1, "90s": 90},
    "timeout": {"0": 0},
    "keep": {"36500d": 36_500 * 86_400},
    "pauses": {"0.5, 10s,5m": RunPauses(0.5, 10, 300)},
    "on_failure": {"shop.alerts:Mail.tell": "shop.alerts:Mail.tell"},
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_value_is_taken_from_the_environment_and_from_the_file(tmp_path: Path, name: str) -> None:
    (field,) = [one.field for one in SETTINGS if one.name == name]
    for value, expected in RIGHT[name].items():
        assert getattr(load(tmp_path, dsn=DSN, **{name: value}), field) == expected
        found = load_env_file(tmp_path, f"TASKSERVER_DSN={DSN}\nTASKSERVER_{name.upper()}='{value}'\n")
        assert getattr(found, field) == expected
        (tmp_path / ".env").unlink()


NUMBERS = ["x", "1.5", "-1", "1_0", "٣", "9" * 5000]
NO_SECONDS = [*NUMBERS, "1.5h", "5 m", "5M", "8d"]
WRONG: dict[str, tuple[str, list[str]]] = {  # what is allowed, and what is not
    "table": ("up to 39 letters, digits or _", ["1x", "a-b", "größe", "A" * 41, "`x`", "x\n"]),
    "mode": ("delete or move or mark", ["Delete", "remove"]),
    "modules": (
        "module names with commas between them",
        ["*", "tasks,", ".tasks", "shop..jobs", "shop.*.jobs", "shop*", "tasks;os"],
    ),
    "max_attempts": ("a whole number from 1 to", ["0", "10s", *NUMBERS]),
    "lease": ("of seconds, or a span such as 90s, 5m, 1h or 2d", ["0", "0m", *NO_SECONDS]),
    "timeout": ("a whole number from 0 to", NO_SECONDS),
    "db_patience": ("a whole number from 0 to", ["2d", *NO_SECONDS]),
    "keep": ("a span with its unit, such as 30d", ["30", "0d", "30 d", "1.5d"]),
    "keep ": ("or a span such as 90s, 5m, 1h or 2d", ["36501d"]),
    "pauses": (
        "three numbers of seconds, or spans such as 90s, 5m, 1h or 2d, after work",
        ["1,2", "1,2,3,4", "0,1,5", "1,0.5,5", "1,5,2", "1,2,3601", "a,b,c"],
    ),
    "log_level": ("debug or info or warning or error", ["INFO", "warn"]),
    "log_format": ("text or json", ["JSON"]),
    "setup": ("module:function, such as shop.worker:setup", ["django.setup"]),
    "between": ("module:function, such as django.db:close_old_connections", ["django.db:"]),
    "on_failure": ("module:function, such as alerts:notify", ["alerts.tell", ":tell", "a b:c", "a:b()", "a:b:c"]),
    "backoff": (
        "exponential:60, linear:300 or fixed:30",
        ["60", "exponential:", "random:60", "Fixed:30", "fixed:1.5", "fixed:2d", "fixed:86401", "fixed:30\n"],
    ),
}


@pytest.mark.parametrize("key", WRONG)
def test_the_error_of_a_wrong_value_names_it_and_what_is_allowed(tmp_path: Path, key: str) -> None:
    allowed, values = WRONG[key]
    key = f"TASKSERVER_{key.strip().upper()}"
    for value in values:
        with pytest.raises(SettingError) as caught:
            load_settings(tmp_path, {"TASKSERVER_DSN": DSN, key: value})
        message = str(caught.value)
        assert message.startswith(f"{key} is wrong: {shown(value)}; allowed: ")
        assert allowed in message
        assert len(message) < 300
        assert len(message.splitlines()) == 1


def test_a_server_made_in_code_takes_texts_and_python_values() -> None:
    with TaskServer(DSN, lease="5m", modules=["tasks", "shop.jobs.*"], setup=print, backoff="fixed:5m") as server:
        found = server.settings
    assert (found.lease_seconds, found.modules, found.setup) == (300, ("tasks", "shop.jobs.*"), print)
    assert found.backoff == Backoff("fixed", 300)


def test_the_table_has_a_row_for_each_field_and_each_argument() -> None:
    assert tuple(one.field for one in SETTINGS) == Settings._fields[2:]
    in_python = {one.name for one in SETTINGS if not one.name.startswith("log")}
    assert set(inspect.signature(TaskServer).parameters) == in_python | {"dsn", "password", "folder"}
    assert tuple(one.field for one in PAGE_SETTINGS) == PageSettings._fields
    assert tuple(one.key for one in PAGE_SETTINGS) == PAGE_KEYS


@pytest.mark.parametrize("groups", ["", "3,,5", "3,*", "-1", "٣", "4294967295"])
def test_an_add_token_names_its_groups_by_numbers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, groups: str) -> None:
    entry = f"shop;sha256={'a' * 64};tasks=tasks.send,shop.*;groups="
    monkeypatch.setenv("TASKSERVER_ADD_TOKENS", f"{entry}3,4294967294")
    (right,) = load_page_settings(tmp_path).add_tokens
    assert (right.tasks, right.groups) == (("tasks.send", "shop.*"), (3, 4294967294))
    monkeypatch.setenv("TASKSERVER_ADD_TOKENS", f"{entry}* {entry}{groups}")
    with pytest.raises(SettingError, match=r"TASKSERVER_ADD_TOKENS is wrong in entry 2; allowed: .*groups=3,5"):
        load_page_settings(tmp_path)


# ---- where they come from


def test_without_a_dsn_the_error_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=rf"TASKSERVER_DSN is not set.*{tmp_path}/\.env.*client\.py init"):
        load_settings(tmp_path, {"TASKSERVER_DSN": ""})


def test_the_environment_wins_over_the_file_unless_it_is_blank(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TASKSERVER_TABLE=of_file\nTASKSERVER_MODE=mark\nTASKSERVER_LEASE=\n")
    found = load(tmp_path, dsn=DSN, table="of_environment", mode="", log="var/log")
    assert (found.table, found.mode, found.lease_seconds) == ("of_environment", "mark", 120)
    assert found.log_file == tmp_path / "var" / "log"


def test_no_file_of_the_current_folder_or_above_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text(f"TASKSERVER_DSN={DSN}\n")
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match="TASKSERVER_DSN is not set"):
        load_settings(tmp_path / "site", {})


def test_the_program_folder_is_that_of_the_started_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path / "program.py")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "link.py"), raising=False)
    assert program_folder() == tmp_path
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    assert program_folder() == Path.cwd()


@pytest.mark.parametrize(("dsn", "left"), [("mysql://u:p@h/db", []), ("mysql://u@h/db", ["TASKSERVER_DSN"])])
def test_secrets_are_hidden_from_child_programs_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dsn: str, left: list[str]
) -> None:
    monkeypatch.setattr(load_module, "_hidden", {})
    monkeypatch.setattr(os, "environ", {"TASKSERVER_DSN": dsn, "TASKSERVER_PASSWORD": SECRET, "PATH": "/bin"})
    before = load_settings(tmp_path, os.environ)
    hide_secrets()
    assert list(os.environ) == [*left, "PATH"]
    assert load_settings(tmp_path, os.environ) == before
    os.environ["TASKSERVER_DSN"] = "sqlite:///other.db"
    assert load_settings(tmp_path, os.environ).dsn == Dsn("sqlite", "other.db")


def test_the_sources_of_settings_and_overrides_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TASKSERVER_PASSWORD", SECRET)
    (tmp_path / ".env").write_text(f"TASKSERVER_DSN={DSN}\nTASKSERVER_MODE=mark\n")
    begin = f"from {tmp_path}/.env: TASKSERVER_DSN"
    of_environment = "; from environment: TASKSERVER_PASSWORD"
    assert sources(tmp_path, None) == (f"{begin}, TASKSERVER_MODE{of_environment}", [])
    monkeypatch.setenv("TASKSERVER_MODE", "move")
    end = f"; the environment wins over another value in {tmp_path}/.env for TASKSERVER_MODE"
    assert sources(tmp_path, None) == (f"{begin}{of_environment}, TASKSERVER_MODE{end}", ["TASKSERVER_MODE"])


# ---- the file's own grammar

LINES = {  # and the password that they mean
    'TASKSERVER_PASSWORD="double"': "double",
    "TASKSERVER_PASSWORD = spaced ": "spaced",
    "export TASKSERVER_PASSWORD=exported": "exported",
    "TASKSERVER_PASSWORD='a # no comment'  # a comment": "a # no comment",
    r"TASKSERVER_PASSWORD='it\'s a \\ here'": "it's a \\ here",
    "TASKSERVER_PASSWORD='$HOME ${HOME} $(id) `id` %HOME%'": "$HOME ${HOME} $(id) `id` %HOME%",
    "TASKSERVER_PASSWORD=first\nTASKSERVER_PASSWORD=last": "last",
    "# TASKSERVER_PASSWORD=commented": "in_dsn",
}


def test_values_in_the_file_are_not_interpolated(tmp_path: Path) -> None:
    for line, password in LINES.items():
        text = f"# a comment\n\nTASKSERVER_DSN=mysql://u:in_dsn@h/db\n{line}\nTASKSERVER_TABLE=after\n"
        found = load_env_file(tmp_path, text)
        assert (found.dsn.password, found.table) == (password, "after")


# ---- mistakes in .env: the error says what is wrong and the fix, in one line, and never the password

SERVER = f"mysql://you_shop:{SECRET}@localhost/you_shop"
RIGHT_ENV = f"TASKSERVER_DSN={SERVER}\n"

ENVS: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "left the example's line a comment": (f"# {RIGHT_ENV}", ("TASKSERVER_DSN is not set", "put it there, as")),
    "wrote it small": (RIGHT_ENV.replace("TASKSERVER_DSN", "taskserver_dsn"), ("did you mean TASKSERVER_DSN?",)),
    "wrote a key that there is not": (
        f"{RIGHT_ENV}TASKSERVER_CHARSET=utf8\n",
        ("line 2 has an unknown key; allowed: TASKSERVER_DSN, ", "TASKSERVER_TABLE,"),
    ),
    "kept a setting of an earlier version": (
        f"{RIGHT_ENV}TASKSERVER_WARN_AFTER=3\n",
        ("line 2 sets TASKSERVER_WARN_AFTER, which is gone: delete it; client.py check --mail",),
    ),
    "wrote it as YAML": (f"TASKSERVER_DSN: {SERVER}\n", ("line 1", "KEY=value")),
    "wrote a password right behind": (f"\n\nTASKSERVER_PASSWORD{SECRET}\n", ("line 3 lacks its =",)),
    "wrote a password with a = in it": (f"TASKSERVER_PASSWORT{SECRET}=x\n", ("line 1 has an unknown key",)),
    "lost the end of a line": (f"TASKSERVER_MODE=moveTASKSERVER_PASSWORD={SECRET}\n", ("line 1 ", "two settings")),
    "opened a quote and closed none": (f"TASKSERVER_DSN='{SERVER}\n", ("line 1", "a quote in it is not closed")),
    "saved it as UTF-16": (RIGHT_ENV.encode("utf-16"), (".env cannot be read", "save it as UTF-8")),
    "named a file as a module": (
        f"{RIGHT_ENV}TASKSERVER_MODULES=tasks,shop.jobs.py\n",
        ("TASKSERVER_MODULES names the file 'shop.jobs.py'", ": write shop.jobs"),
    ),
}


def setting_error(folder: Path, **environ: str) -> str:
    """The error of settings that are wrong, without the password in it."""
    with pytest.raises(SettingError) as caught:
        load_settings(folder, environ)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    return message


@pytest.mark.parametrize("what", ENVS)
def test_a_wrong_env_is_answered_with_its_fix(tmp_path: Path, what: str) -> None:
    content, words = ENVS[what]
    (tmp_path / ".env").write_bytes(content if isinstance(content, bytes) else content.encode())
    message = setting_error(tmp_path)
    assert [word for word in words if word not in message] == []


def test_a_wrong_key_of_the_environment_is_answered_with_its_fix(tmp_path: Path) -> None:
    message = setting_error(tmp_path, TASKSERVER_DSN=SERVER, TASKSERVER_MODULE="shop")
    assert "the environment names TASKSERVER_MODULE, " in message
    assert "did you mean TASKSERVER_MODULES?" in message


def test_windows_ends_of_lines_and_a_byte_order_mark_are_understood(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xef\xbb\xbfTASKSERVER_DSN=sqlite:///q.db\r\nTASKSERVER_MODE='delete'\r\n")
    assert load_settings(tmp_path, {}) == load_settings(tmp_path, {"TASKSERVER_DSN": "sqlite:///q.db"})


# ---- init, before it makes a database


def test_init_makes_no_second_env_beside_one_of_a_wrong_name(tmp_path: Path) -> None:
    (tmp_path / ".env.txt").write_text(RIGHT_ENV)  # as Notepad saves it
    assert f"{tmp_path}/.env.txt is not read: rename it to .env" in setting_error(tmp_path)
    assert_one_line(run_here(client.main, tmp_path, "init"), 2, ".env.txt is not read: rename it to .env")
    assert not (tmp_path / ".env").exists()


def test_init_refuses_an_sqlite_file_on_a_network_file_system_before_it_writes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mountinfo").write_text(
        f"20 1 8:1 / / rw - ext4 /dev/sda rw\n21 20 0:9 / {tmp_path} rw - nfs4 x:/ rw\n"
    )
    monkeypatch.setattr(files, "MOUNT_TABLE", tmp_path / "mountinfo")
    words = ("network file system (nfs4)", "MySQL", "TASKSERVER_DSN", "a disk of this host")
    assert_one_line(run_here(client.main, tmp_path, "init"), 2, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["mountinfo"]
