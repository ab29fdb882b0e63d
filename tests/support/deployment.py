"""A folder as a user of taskserver has it, and its two commands run: as cron does, or inside this process."""

from __future__ import annotations

import atexit
import compileall
import io
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from taskserver.cli import client

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 60.0


@cache
def _package() -> str:
    """A copy of taskserver/ with its bytecode, which stays valid: the files keep their times."""
    compileall.compile_dir(ROOT / "taskserver", quiet=2)
    folder = tempfile.mkdtemp(prefix="taskserver-package-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return shutil.copytree(ROOT / "taskserver", f"{folder}/taskserver")


_unchanged: list[str] = []
"""Packages that tests have left as they were: to make another takes longer than a test of a moment."""


def _place_package(target: Path) -> None:
    """By hard links to one copy, which share its owner and its rights."""
    if _unchanged:
        os.rename(_unchanged.pop(), target)
    else:
        shutil.copytree(_package(), target, copy_function=_link)


def _keep_package(target: Path) -> None:
    """Keep a package for the next deployment, if it is as it was placed."""
    if _shape(str(target)) == _shape(_package()):
        kept = f"{_package()}-{secrets.token_hex(6)}"
        with suppress(OSError):  # on another file system
            os.rename(target, kept)
            _unchanged.append(kept)


def _shape(folder: str) -> dict[str, object]:
    """The rights and the owner of a folder, and what is in it: files by their inodes, which links share."""
    found = os.stat(folder)
    shape: dict[str, object] = {"": (found.st_mode, found.st_uid)}
    with os.scandir(folder) as entries:
        for entry in entries:
            shape[entry.name] = _shape(entry.path) if entry.is_dir(follow_symlinks=False) else entry.inode()
    return shape


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)


def run_here(
    main: Callable[[Path, list[str]], int], folder: Path, *args: object, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command inside this process."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    output, errors, words = io.StringIO(), io.StringIO(), [str(arg) for arg in args]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        try:
            code = main(folder, words)
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return subprocess.CompletedProcess(words, code, output.getvalue(), errors.getvalue())


class Deployment:
    """worker.py, client.py and taskserver/ copied to a folder of their own; tasks.py and .env as a test writes them.

    No symbolic link leads to them: worker.py finds its settings beside the place where it really lies.
    """

    def __init__(self, folder: Path, python: str = sys.executable, linked: bool = True) -> None:
        """Not `linked` is for who gives the files to another account."""
        self.folder = folder / "deployment"
        self.home = folder / "home"
        self.python = python
        self._is_linked = linked
        self._started: list[subprocess.Popen[str]] = []
        self.at_close: list[Callable[[], object]] = []
        self.folder.mkdir()
        self.home.mkdir()
        for name in ("worker.py", "client.py"):
            shutil.copy2(ROOT / name, self.folder)
        if linked:
            _place_package(self.folder / "taskserver")
        else:
            shutil.copytree(ROOT / "taskserver", self.folder / "taskserver")

    def write_tasks(self, text: str, name: str = "tasks.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def claim_at_once(self) -> None:
        """From here on each claim takes as many tasks as --batch says, however long they take."""
        path = self.folder / "taskserver" / "worker" / "limits.py"
        text = path.read_text(encoding="utf-8")
        path.unlink()  # a link to our own
        code = "lambda size, left: size._most if left is None else min(size._most, left)"
        path.write_text(f"{text}\n\nClaimSize.next = {code}\n", encoding="utf-8")

    def write_env(self, text: str = "", **settings: object) -> Path:
        """The .env beside worker.py: a text, then settings, each in single quotes."""
        path = self.folder / ".env"
        path.write_text(text + "".join(f"{key}='{value}'\n" for key, value in settings.items()), encoding="utf-8")
        path.chmod(0o600)
        return path

    def age_outages(self, seconds: float) -> None:
        """Make what was noted of outages so much older."""
        for path in self.folder.glob("var/outages/*"):
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))

    def wrap_python(self, prefix: Sequence[str]) -> None:
        """From here on this command comes before Python, which it executes in its own place."""
        wrapper = self.home / "python"
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(prefix)} {shlex.quote(self.python)} "$@"\n')
        wrapper.chmod(0o700)
        self.python = str(wrapper)

    def worker(self, *args: object, **how: Any) -> subprocess.CompletedProcess[str]:
        """Runs worker.py to its end; `how` is that of `run`."""
        return self.run("worker.py", *args, **how)

    def client(self, *args: object, **how: Any) -> subprocess.CompletedProcess[str]:
        """Runs client.py to its end; `how` is that of `run`."""
        return self.run("client.py", *args, **how)

    def here(self, *args: object, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs client.py inside this process."""
        return run_here(client.main, self.folder, *args, env=env)

    def run(
        self,
        script: str,
        *args: object,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        timeout: float = TIMEOUT_SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script of the folder to its end, and kills it after `timeout` seconds."""
        process = self.popen(script, *args, env=env)
        try:
            output, errors = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
            raise AssertionError(f"{script} did not end in {timeout} s\n{output}\n{errors}") from None
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def popen(self, script: str, *args: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Starts a script of the folder and returns at once, for tests that send signals.

        As under cron: no terminal, a minimal environment (and what is in env), the home folder as current one.
        """
        process = subprocess.Popen(
            [self.python, str(self.folder / script), *map(str, args)],
            cwd=self.home,
            env={"PATH": os.defpath, "HOME": str(self.home), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """Kills what a test left running, and closes what it opened."""
        for close in self.at_close:
            close()
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        if self._is_linked and Path(self.folder, "taskserver").is_dir():
            _keep_package(self.folder / "taskserver")
            self._is_linked = False
