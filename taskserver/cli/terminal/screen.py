"""The whole terminal, for a picture that is drawn again and again; afterwards it is as it was before.

By hand and not by curses, which some hosts' Python lacks. A picture is one write that begins at the top and clears what
is left of each line as it goes: nothing flickers.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from .style import cut, width_of

BEGIN = "\x1b[?1049h\x1b[?25l"
"""Another screen, where the terminal has one, and no cursor."""
END = "\x1b[999;1H\r\n\x1b[?25h\x1b[?1049l"
"""Where the terminal has no other screen, the shell goes on below the picture."""
TOP, REST_OF_LINE, REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
USUAL_SIZE = (80, 24)
_COLOUR = re.compile(r"(\x1b\[[\d;]*m)")


@contextmanager
def whole_terminal() -> Iterator[Screen]:
    """The terminal of standard output, in the `with`; any signal of ENDS raises KeyboardInterrupt there."""
    screen = Screen()
    try:
        screen.begin()
        yield screen
    finally:
        screen.end()


class Screen:
    """Draws lines on a terminal, and waits between two pictures."""

    def __init__(self) -> None:
        self.redraw: Callable[[], None] = lambda: None
        """Called where the terminal has got another size, also in the midst of other work; `draw` is for it to call."""
        self._terminal = sys.stdout.fileno()
        self._keys = [sys.stdin.fileno()] if sys.stdin.isatty() else []
        self._modes: list[list[Any]] = [termios.tcgetattr(keys) for keys in self._keys]
        self._picture = ""
        self._is_on = False
        self._empty_reads = 0
        self._is_ending = False
        self._woken, self._wake = os.pipe()
        """A signal that only wakes writes a byte here; Python would go on with select otherwise."""

    def begin(self) -> None:
        """Take the terminal, and hear the signals."""
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in ENDS:
            signal.signal(number, self._hear_end)
        signal.signal(signal.SIGWINCH, self._hear_size)
        signal.signal(signal.SIGTSTP, self._stop)
        signal.signal(signal.SIGCONT, self._go_on)
        self._take()

    def end(self) -> None:
        """Give the terminal back. From here on all of these signals are passed over: the program ends."""
        self._is_ending = True  # no handler is taken away: Python would complain of a signal that has just come
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # Python takes its handlers away as it ends
        with suppress(OSError):  # the terminal is gone
            self._give_back()
        signal.set_wakeup_fd(-1)
        os.close(self._woken)
        os.close(self._wake)

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        columns, lines = os.get_terminal_size(self._terminal)
        return columns or USUAL_SIZE[0], lines or USUAL_SIZE[1]

    def draw(self, heads: Sequence[str], lines: Sequence[str]) -> None:
        """Show these, cut to what the terminal has room for; the last line says how many more there are."""
        columns, height = self.size()
        room = max(height - len(heads), 0)
        if len(lines) > room:
            lines = [*lines[: max(room - 1, 0)], f"… {len(lines) - max(room - 1, 0)} more lines"]
        # In the last column a terminal waits with the next line, and some would clear that column.
        shown = [f"{_cut(line, columns - 1)}{REST_OF_LINE}" for line in [*heads, *lines][:height]]
        self._picture = TOP + "\r\n".join(shown) + REST_OF_SCREEN
        self._write(self._picture)

    def pause(self, seconds: float) -> None:
        """Wait. Raises KeyboardInterrupt at the key q."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready = select.select([self._woken, *self._keys], [], [], left)[0]
            if self._woken in ready:
                os.read(self._woken, 1024)
                self.redraw()  # once more: a new size may have come while a picture of the old one was made
            for keys in self._keys:
                if keys in ready:
                    typed = os.read(keys, 1024)
                    # A Ctrl-C takes back what was typed: then nothing is there to be read, once. Always: no terminal.
                    self._empty_reads = 0 if typed else self._empty_reads + 1
                    if b"q" in typed.lower() or self._empty_reads > 1:
                        raise KeyboardInterrupt

    # ---- the terminal, taken and given back

    def _take(self) -> None:
        self._set_modes(but=termios.ECHO | termios.ICANON)
        begin, self._is_on = "" if self._is_on else BEGIN, True
        self._write(begin + self._picture)

    def _give_back(self) -> None:
        self._set_modes()
        if self._is_on:
            self._is_on = False
            self._write(END)

    def _set_modes(self, but: int = 0) -> None:
        """The terminal's own modes, but for these local ones: keys are not echoed, and come without Enter."""
        for keys, modes in zip(self._keys, self._modes, strict=True):
            characters = list(modes[6])
            if but:  # no read waits for a key, which a Ctrl-C may have taken back meanwhile
                characters[termios.VMIN], characters[termios.VTIME] = 0, 0
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(keys, termios.TCSANOW, [*modes[:3], modes[3] & ~but, *modes[4:6], characters])

    def _hear_size(self, *_: object) -> None:
        if self._is_on and not self._is_ending:
            self.redraw()

    def _hear_end(self, *_: object) -> None:
        # A second Ctrl-C must not end what the first one began.
        if not self._is_ending:
            self._is_ending = True
            raise KeyboardInterrupt

    def _go_on(self, *_: object) -> None:
        """Take the terminal again, which somebody may have used while this process was stopped."""
        if not self._is_ending:
            self._take()

    def _stop(self, *_: object) -> None:
        """Give the terminal back to the shell, stop, and take it again once this goes on."""
        if self._is_ending:
            return
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._stop)
        self._go_on()

    def _write(self, text: str) -> None:
        # Not by sys.stdout: what a signal leaves in its buffer would be written after the end.
        rest = text.encode(sys.stdout.encoding or "utf-8", "backslashreplace")
        while rest:
            rest = rest[os.write(self._terminal, rest) :]


def _cut(line: str, most: int) -> str:
    """The line in at most so many columns, with all of its colours."""
    parts = []
    for number, part in enumerate(_COLOUR.split(line)):
        if number % 2:  # a colour, between two texts
            parts.append(part)
            continue
        parts.append(cut(part, most) if most > 0 else "")
        most = most - width_of(part) if parts[-1] == part else 0
    return "".join(parts)
