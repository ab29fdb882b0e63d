"""Mistakes in .env and in the DSN: the error says what is wrong and the fix, in one line, and never the password."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from taskserver.cli.client import main
from taskserver.errors import SettingError
from taskserver.host import files
from taskserver.settings.load import load_settings
from tests.support.deployment import run_here
from tests.support.processes import assert_one_line

SECRET = "s3cr3tOfTheShop"
DSN = f"mysql://you_shop:{SECRET}@localhost/you_shop"
RIGHT = f"TASKSERVER_DSN={DSN}\n"
NOT_SET = "TASKSERVER_DSN is not set"
UTF_8 = "save it as UTF-8"

ENVS: dict[str, tuple[str | dict[str, bytes], tuple[str, ...]]] = {
    "made no .env": ({}, (NOT_SET, "SHOP/taskserver/.env", "client.py init")),
    "called it env": ({"env": b""}, ("SHOP/taskserver/env is not read: rename it to .env",)),
    "had .txt put behind it": ({".env.txt": b""}, (".env.txt is not read: rename it to .env",)),
    "left the example's line a comment": (f"# {RIGHT}", (NOT_SET, "put it there, as")),
    "wrote it small": (RIGHT.replace("TASKSERVER_DSN", "taskserver_dsn"), ("did you mean TASKSERVER_DSN?",)),
    "wrote a key that there is not": (
        f"{RIGHT}TASKSERVER_CHARSET=utf8\n",
        ("line 2 has an unknown key; allowed: TASKSERVER_DSN, ", "TASKSERVER_TABLE,"),
    ),
    "kept a setting of an earlier version": (
        f"{RIGHT}TASKSERVER_WARN_AFTER=3\n",
        ("line 2 sets TASKSERVER_WARN_AFTER, which is gone: delete it; client.py check --mail",),
    ),
    "wrote it as YAML": (f"TASKSERVER_DSN: {DSN}\n", ("line 1", "KEY=value")),
    "wrote a password as YAML": (f"{RIGHT}TASKSERVER_PASSWORD:{SECRET}\n", ("line 2 lacks its =",)),
    "wrote a password right behind": (f"\n\nTASKSERVER_PASSWORD{SECRET}\n", ("line 3 lacks its =",)),
    "wrote a password with a = in it": (f"TASKSERVER_PASSWORT{SECRET}=x\n", ("line 1 has an unknown key",)),
    "lost the end of a line": (f"TASKSERVER_MODE=moveTASKSERVER_PASSWORD={SECRET}\n", ("line 1 ", "two settings")),
    "wrote dashes": (f"TASKSERVER-PASSWORD-{SECRET}\n", ("line 1 lacks its =",)),
    "wrote it as a Windows batch": (f"set {RIGHT}", ("line 1", "KEY=value")),
    "opened a quote and closed none": (f"TASKSERVER_DSN='{DSN}\n", ("line 1", "a quote in it is not closed")),
    "saved it as UTF-16": ({".env": RIGHT.encode("utf-16")}, (".env cannot be read", UTF_8)),
    "saved it as latin-1": ({".env": RIGHT.replace(SECRET, f"{SECRET}ä").encode("latin-1")}, ("cannot be read", UTF_8)),
    "named a file as a module": (
        f"{RIGHT}TASKSERVER_MODULES=tasks,shop.jobs.py\n",
        ("TASKSERVER_MODULES names the file 'shop.jobs.py'", ": write shop.jobs"),
    ),
}


def put(folder: Path, files: dict[str, bytes]) -> None:
    """Each of these files in a folder; one without content is a right .env."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content or RIGHT.encode())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder `taskserver` beside a home folder, which is the current one."""
    for name in ("taskserver", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "taskserver"


def told(folder: Path, **environ: str) -> str:
    """The error of settings that are wrong, without the password in it."""
    with pytest.raises(SettingError) as caught:
        load_settings(folder, environ)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    return message


@pytest.mark.parametrize("what", ENVS)
def test_a_wrong_env_is_answered_with_its_fix(folder: Path, what: str) -> None:
    content, words = ENVS[what]
    put(folder, {".env": content.encode()} if isinstance(content, str) else content)
    message = told(folder)
    for word in words:
        assert word.replace("SHOP", str(folder.parent)) in message


def test_a_wrong_key_of_the_environment_is_answered_with_its_fix(folder: Path) -> None:
    message = told(folder, TASKSERVER_DSN=DSN, TASKSERVER_MODULE="shop")
    assert "the environment names TASKSERVER_MODULE, " in message
    assert "did you mean TASKSERVER_MODULES?" in message


def test_an_env_of_another_program_is_nobodys_mistake(folder: Path) -> None:
    put(folder, {".env": b"DSN=x\nMODE=production\nTABLE=y\n", "env": b"", "../.env": b"A=b\n"})
    settings = load_settings(folder, {"TASKSERVER_DSN": "sqlite:///q.db", "TASKSERVER_TEST_MYSQL": "of somebody else"})
    assert settings.mode == "delete"


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_windows_ends_of_lines_and_a_byte_order_mark_are_understood(folder: Path, mark: bytes) -> None:
    put(folder, {".env": mark + b"TASKSERVER_DSN=sqlite:///q.db\r\nTASKSERVER_MODE='delete'\r\n"})
    assert load_settings(folder, {}) == load_settings(folder, {"TASKSERVER_DSN": "sqlite:///q.db"})


# ---- init, before it makes a database


@pytest.mark.parametrize("name", ["env", ".env.txt"])
def test_init_makes_no_second_env_beside_one_of_a_wrong_name(folder: Path, name: str) -> None:
    put(folder, {name: f"\ufeff{RIGHT}TASKSERVER_MODE=move\n".replace("\n", "\r\n").encode()})  # as Notepad saves it
    assert_one_line(run_here(main, folder, "init"), 2, f"{name} is not read: rename it to .env")
    assert not (folder / ".env").exists()


def test_init_writes_no_env_through_a_link_that_leads_nowhere(folder: Path) -> None:
    (folder / ".env").symlink_to("nowhere")
    assert_one_line(run_here(main, folder, "init"), 2, ".env is a link to a file that is not there")
    assert not (folder / "nowhere").exists()


@pytest.mark.parametrize("given", [True, False])
def test_init_refuses_an_sqlite_file_on_a_network_file_system_before_it_writes_anything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    table = folder.parent / "mountinfo"
    table.write_text(f"20 1 8:1 / / rw - ext4 /dev/sda rw\n21 20 0:9 / {folder} rw - nfs4 filer:/x rw\n")
    monkeypatch.setattr(files, "MOUNT_TABLE", table)
    if given:
        put(folder, {".env": b"TASKSERVER_DSN=sqlite:///data/shop.db\n"})
    before = sorted(folder.iterdir())
    words = ("network file system (nfs4)", "MySQL", "TASKSERVER_DSN", "a disk of this host")
    assert_one_line(run_here(main, folder, "init"), 2, *words)
    assert sorted(folder.iterdir()) == before
