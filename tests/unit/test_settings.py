"""Settings: from the environment, then from the .env in the program's folder; wrong ones named, secrets kept."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskserver import TaskServer
from taskserver.errors import SettingError
from taskserver.messages.text import shown
from taskserver.model.backoff import Backoff
from taskserver.settings import load as load_module
from taskserver.settings.dsn import Dsn
from taskserver.settings.load import Settings, hide_secrets, load_settings, program_folder, sources
from taskserver.settings.page import PAGE_SETTINGS, PageSettings, load_page_settings
from taskserver.settings.table import PAGE_KEYS, SETTINGS, RunPauses

DSN = "sqlite:///var/taskserver.db"
SECRET = "Hush4ever"


def load(folder: Path, **environ: str) -> Settings:
    """Settings by an environment alone (`table="x"` for TASKSERVER_TABLE) and whatever .env lies in the folder."""
    return load_settings(folder, {f"TASKSERVER_{key.upper()}": value for key, value in environ.items()})


def load_env_file(folder: Path, text: str | bytes) -> Settings:
    content = text if isinstance(text, bytes) else text.encode()
    (folder / ".env").write_bytes(content)
    return load_settings(folder, {})


def password_of(settings: Settings) -> str:
    return settings.dsn.password


# ---- each key


def test_everything_but_the_dsn_has_the_default_of_the_contract(tmp_path: Path) -> None:
    found = load(tmp_path, dsn=DSN)
    assert found[:2] == (tmp_path, Dsn("sqlite", "var/taskserver.db"))
    backoff = Backoff("exponential", 60)
    by_contract = ("jobs_queue", "delete", ("tasks",), 10, backoff, 120, 600, 30, None)
    assert found[2:11] == by_contract
    assert (found.log_file, found.log_level, found.log_format) == (None, "info", "text")
    assert (found.setup, found.between, found.on_failure) == (None, None, None)


RIGHT: dict[str, dict[str, object]] = {  # by the field: texts and what they mean
    "table": {"A" * 40: "A" * 40},
    "mode": {"mark": "mark"},
    "modules": {"tasks,shop.jobs.*": ("tasks", "shop.jobs.*"), " größe._intern , tasks ": ("größe._intern", "tasks")},
    "max_attempts": {"1": 1},
    "backoff": {"fixed:86400": Backoff("fixed", 86400), "exponential:5m": Backoff("exponential", 300)},
    "lease_seconds": {"1": 1, "90s": 90},
    "timeout_seconds": {"0": 0, "2h": 7200},
    "patience_seconds": {"5m": 300},
    "keep_seconds": {"30d": 30 * 86_400, "36500d": 36_500 * 86_400},
    "pauses": {"0.5, 10, 3600": RunPauses(0.5, 10, 3600), "0.5,10s,5m": RunPauses(0.5, 10, 300)},
    "setup": {"django:setup": "django:setup"},
    "between": {"django.db:close_old_connections": "django.db:close_old_connections"},
    "on_failure": {"shop.alerts:Mail.tell": "shop.alerts:Mail.tell"},
}


@pytest.mark.parametrize("field", RIGHT)
def test_a_right_value_is_taken_from_the_environment_and_from_the_file(tmp_path: Path, field: str) -> None:
    (key,) = [f"TASKSERVER_{one.name.upper()}" for one in SETTINGS if one.field == field]
    for value, expected in RIGHT[field].items():
        assert getattr(load_settings(tmp_path, {"TASKSERVER_DSN": DSN, key: value}), field) == expected
        assert getattr(load_env_file(tmp_path, f"TASKSERVER_DSN={DSN}\n{key}='{value}'\n"), field) == expected
        (tmp_path / ".env").unlink()


NUMBERS = ["x", "1.5", "1e2", "-1", "+1", "0x10", "1_0", "٣", "1 0", "9" * 30, "9" * 5000, "'5'"]
NO_SECONDS = [*NUMBERS, "h", "1.5h", "1h30m", "5 m", "5M", "5min", "8d"]
WRONG: dict[str, tuple[str, list[str]]] = {  # what is allowed, and what is not
    "table": ("up to 39 letters, digits or _", ["1x", "a-b", "a.b", "a b", "größe", "A" * 41, "`x`", "x\n", " "]),
    "mode": ("delete or move or mark", ["Delete", "remove", "delete,move", "delete ", "0"]),
    "modules": (
        "module names with commas between them",
        [
            "*",
            "tasks,",
            ".tasks",
            "tasks.",
            "shop..jobs",
            "shop.*.jobs",
            "shop*",
            "tasks;os",
            "1a",
            "a/b",
            "*.a",
            "a:b",
        ],
    ),
    "max_attempts": ("a whole number from 1 to", ["0", "10s", *NUMBERS]),
    "lease": ("of seconds, or a span such as 90s, 5m, 1h or 2d", ["0", "0m", *NO_SECONDS]),
    "timeout": ("a whole number from 0 to", NO_SECONDS),
    "db_patience": ("a whole number from 0 to", ["2d", *NO_SECONDS]),
    "keep": ("a span with its unit, such as 30d", ["30", "0", "0d", "for ever", "30 d", "1.5d", "30D", "-1d"]),
    "keep ": ("or a span such as 90s, 5m, 1h or 2d", ["36501d"]),
    "pauses": (
        "three numbers of seconds, or spans such as 90s, 5m, 1h or 2d, after work",
        ["1", "1,2", "1,2,3,4", "0,1,5", "1,0.5,5", "1,5,2", "1,2,3601", "-1,2,3", "1,2,1_0", "a,b,c"],
    ),
    "log_level": ("debug or info or warning or error", ["INFO", "warn", "critical", "20"]),
    "log_format": ("text or json", ["JSON", "logfmt"]),
    "setup": ("module:function, such as shop.worker:setup", ["django", "django.setup", "django:setup()"]),
    "between": ("module:function, such as django.db:close_old_connections", ["django.db", "django.db:"]),
    "on_failure": (
        "module:function, such as alerts:notify",
        ["alerts", "alerts.tell", ":tell", "a b:c", "a:b()", "a:b:c"],
    ),
    "backoff": (
        "exponential:60, linear:300 or fixed:30",
        [
            *("60", "exponential", "exponential:", ":60", "random:60", "Fixed:30", "fixed:-1", "fixed:1.5", "fixed:2d"),
            *("fixed:86401", "fixed: 30", "fixed:30,60", "fixed=30", "fixed:٣", "fixed:30\n"),
        ],
    ),
}


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_value_is_named_shown_and_set_right(tmp_path: Path, key: str) -> None:
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


def test_a_server_that_is_made_by_hand_takes_texts_and_values_of_python() -> None:
    given = {"lease": "5m", "modules": ["tasks", "shop.jobs.*"], "keep": "30d", "pauses": "1,2,3"}
    with TaskServer(DSN, **given, setup=print, max_attempts=1, backoff="fixed:5m") as server:  # type: ignore[arg-type]
        found = server.settings
    assert (found.lease_seconds, found.modules, found.keep_seconds) == (300, ("tasks", "shop.jobs.*"), 30 * 86_400)
    assert (found.setup, found.max_attempts) == (print, 1)
    assert (found.backoff, found.pauses) == (Backoff("fixed", 300), RunPauses(1, 2, 3))


def test_the_table_has_a_row_for_each_field_and_each_argument() -> None:
    assert tuple(one.field for one in SETTINGS) == Settings._fields[2:]
    in_python = {one.name for one in SETTINGS if not one.name.startswith("log")}
    assert set(inspect.signature(TaskServer).parameters) == in_python | {"dsn", "password", "folder"}
    assert tuple(one.field for one in PAGE_SETTINGS) == PageSettings._fields
    assert tuple(one.key for one in PAGE_SETTINGS) == PAGE_KEYS


@pytest.mark.parametrize("groups", ["", "x", "3,", "3,,5", "3,*", "-1", "٣", "1_0", "1.5", "4294967295"])
def test_a_token_that_may_add_names_its_groups_by_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, groups: str
) -> None:
    entry = f"shop;sha256={'a' * 64};tasks=tasks.send,shop.*;groups="
    monkeypatch.setenv("TASKSERVER_ADD_TOKENS", f"{entry}3,4294967294")
    (right,) = load_page_settings(tmp_path).add_tokens
    assert (right.tasks, right.groups) == (("tasks.send", "shop.*"), (3, 4294967294))
    monkeypatch.setenv("TASKSERVER_ADD_TOKENS", f"{entry}* {entry}{groups}")
    with pytest.raises(SettingError, match=r"TASKSERVER_ADD_TOKENS is wrong in entry 2; allowed: .*groups=3,5"):
        load_page_settings(tmp_path)


# ---- where they come from


def test_without_a_dsn_it_says_where_it_looked_and_what_to_do(tmp_path: Path) -> None:
    for environ in ({}, {"TASKSERVER_DSN": ""}, {"TASKSERVER_TABLE": "x"}, {"taskserver_dsn": DSN}):
        with pytest.raises(SettingError) as caught:
            load_settings(tmp_path, environ)
        assert "TASKSERVER_DSN is not set" in str(caught.value)
        assert str(tmp_path / ".env") in str(caught.value)
        assert "client.py init" in str(caught.value)


def test_the_environment_wins_over_the_file_and_a_blank_there_does_not_count(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TASKSERVER_DSN=sqlite:///file.db\nTASKSERVER_TABLE=of_file\nTASKSERVER_MODE=mark\n")
    found = load(tmp_path, dsn=DSN, table="of_environment", mode="")
    assert (found.dsn, found.table, found.mode) == (Dsn("sqlite", "var/taskserver.db"), "of_environment", "mark")


def test_a_blank_in_the_file_means_the_default(tmp_path: Path) -> None:
    keys = ("TABLE", "MODE", "MODULES", "MAX_ATTEMPTS", "BACKOFF", "LEASE", "TIMEOUT", "DB_PATIENCE", "PAUSES", "LOG")
    text = f"TASKSERVER_DSN={DSN}\n"
    for end in ("=\n", "=''\n", '=""\n', "= \n", "\n", "= # nothing\n"):
        found = load_env_file(tmp_path, text + "".join(f"TASKSERVER_{key}{end}" for key in (*keys, "PASSWORD")))
        assert (end, found) == (end, load(tmp_path, dsn=DSN))


def test_the_file_is_left_alone_where_it_says_nothing_of_ours(tmp_path: Path) -> None:
    before = dict(os.environ)
    (tmp_path / ".env").write_text("PATH=/evil\nDB_PASSWORD=x\nDSN=y\nSERVER_DSN=z\n")
    with pytest.raises(SettingError, match="not set"):
        load_settings(tmp_path, {})
    assert dict(os.environ) == before


def test_the_file_beside_the_program_is_read_and_none_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (tmp_path, tmp_path / "home"):
        folder.mkdir(exist_ok=True)
        (folder / ".env").write_text(f"TASKSERVER_DSN={DSN}\n")
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    with pytest.raises(SettingError, match="TASKSERVER_DSN is not set"):
        load_settings(tmp_path / "site", {})


def test_the_programs_folder_is_that_of_the_started_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("")
    (tmp_path / "link.py").symlink_to(tmp_path / "program.py")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "link.py"), raising=False)
    assert program_folder() == tmp_path
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    assert program_folder() == Path.cwd()


@pytest.mark.parametrize("log", ["log.txt", "var/worker.log", "../up.log", "größe .log", "/var/log/worker.log"])
def test_a_relative_log_starts_in_the_folder(tmp_path: Path, log: str) -> None:
    assert load(tmp_path, dsn=DSN, log=log).log_file == tmp_path / log


@pytest.mark.parametrize(
    ("dsn", "left"), [("mysql://u:p@h/db", []), ("mysql://u@h/db", ["TASKSERVER_DSN"]), (DSN, ["TASKSERVER_DSN"])]
)
def test_a_secret_that_is_hidden_from_programs_is_still_known_to_this_one(
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


@pytest.mark.parametrize(("value", "overrules"), [("", False), ("mark", False), ("move", True)])
def test_who_set_what_is_said_with_what_the_environment_overrides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, overrules: bool
) -> None:
    monkeypatch.setenv("TASKSERVER_MODE", value)
    monkeypatch.setenv("TASKSERVER_PASSWORD", SECRET)
    (tmp_path / ".env").write_text(f"TASKSERVER_DSN={DSN}\nTASKSERVER_MODE=mark\n")
    words, overruled = sources(tmp_path, None)
    in_file = "" if value else ", TASKSERVER_MODE"
    begin = f"from {tmp_path}/.env: TASKSERVER_DSN{in_file}; from environment: TASKSERVER_PASSWORD"
    assert overruled == (["TASKSERVER_MODE"] if overrules else [])
    end = f"; the environment wins over another value in {tmp_path}/.env for TASKSERVER_MODE" if overrules else ""
    assert words == f"{begin}{', TASKSERVER_MODE' if value else ''}{end}"


# ---- the file's own grammar


LINES = {  # and the password that they mean
    'TASKSERVER_PASSWORD="double"': "double",
    "TASKSERVER_PASSWORD = spaced ": "spaced",
    "export TASKSERVER_PASSWORD=exported": "exported",
    "TASKSERVER_PASSWORD='  spaces inside  '": "  spaces inside  ",
    "TASKSERVER_PASSWORD='a # no comment'  # a comment": "a # no comment",
    "TASKSERVER_PASSWORD='$HOME ${HOME} $(id) `id` %HOME%'": "$HOME ${HOME} $(id) `id` %HOME%",
    "TASKSERVER_PASSWORD=first\nTASKSERVER_PASSWORD=last": "last",
    "# TASKSERVER_PASSWORD=commented": "in_dsn",
    "TASKSERVER_PASSWORD=": "in_dsn",
}


def test_a_value_in_the_file_is_read_without_interpolation(tmp_path: Path) -> None:
    for line, password in LINES.items():
        text = f"# a comment\n\nTASKSERVER_DSN=mysql://u:in_dsn@h/db\n{line}\nTASKSERVER_TABLE=after\n"
        found = load_env_file(tmp_path, text)
        assert (password_of(found), found.table) == (password, "after")


PASSWORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=30)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(PASSWORDS)
def test_any_password_stands_in_single_quotes_with_backslash_and_quote_escaped(tmp_path: Path, password: str) -> None:
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    found = load_env_file(tmp_path, f"TASKSERVER_DSN=mysql://u@h/db\nTASKSERVER_PASSWORD='{escaped}'\n")
    assert password_of(found) == password


# ---- what is shown of them


def test_another_wrong_key_does_not_bring_the_password_to_light(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        load(tmp_path, dsn=f"mysql://user:{SECRET}@h/db", password=SECRET, table="1x")
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(caught.value)
