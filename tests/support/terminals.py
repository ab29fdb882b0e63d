"""A program on a terminal of its own, with a person before it who types, resizes and reads."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.deployment import Deployment
from tests.support.processes import WAIT_SECONDS, wait_until

TOP = "\x1b[H"
REST = re.compile(r"\x1b\[[JK]|\r")


class PersonsTerminal:
    """Runs a command as the leader of a session whose terminal this is: Ctrl-C and resizes come as signals."""

    def __init__(
        self, deployment: Deployment, command: Sequence[str], size: tuple[int, int] = (120, 30), **env: str
    ) -> None:
        self._leader, self._follower = pty.openpty()
        self.resize(*size)
        self.modes_before = self.modes()
        environment: Mapping[str, str] = {"PATH": os.defpath, "HOME": str(deployment.home), "TZ": "UTC", **env}
        self.process = subprocess.Popen(
            command,
            cwd=deployment.home,
            env=environment,
            stdin=self._follower,
            stdout=self._follower,
            stderr=self._follower,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        self._read_so_far = ""
        self._read_at = time.monotonic()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        deployment.at_close.append(self.close)

    @property
    def output(self) -> str:
        """All that was written; a terminal puts a carriage return before each line's end."""
        return self._read_so_far.replace("\r\n", "\n")

    def modes(self) -> list[Any]:
        """As termios has them: echo, lines or keys, and so on."""
        return termios.tcgetattr(self._follower)

    def set_modes(self, modes: list[Any]) -> None:
        termios.tcsetattr(self._follower, termios.TCSANOW, modes)

    def resize(self, columns: int, lines: int) -> None:
        """The system sends SIGWINCH to whoever is in the foreground."""
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))

    def type(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def picture(self) -> list[str]:
        """The lines of the last picture that was drawn whole, with the codes of their colours."""
        whole = self.output.rpartition("\x1b[J")[0]
        return REST.sub("", whole.rpartition(TOP)[2]).split("\n")

    def wait_for_picture(self, *words: str) -> list[str]:
        """The next picture that has all of these words, or the last one."""
        wait_until(lambda: all(word in "\n".join(self.picture()) for word in words))
        return self.picture()

    def quiet_seconds(self) -> float:
        """Since when nothing was written."""
        return time.monotonic() - self._read_at

    def wait_for_output(self, text: str) -> None:
        wait_until(lambda: text in self.output)

    def end(self) -> int:
        """The exit code of a command that ends by itself."""
        return self.process.wait(WAIT_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._follower)
        self._reading.join(WAIT_SECONDS)
        os.close(self._leader)

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._leader, 65536)
            except OSError:  # nobody has the terminal any more
                return
            self._read_at = time.monotonic()
            self._read_so_far += part.decode(errors="replace")
