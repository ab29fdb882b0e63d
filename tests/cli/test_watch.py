"""client.py status --watch, on a terminal: what is drawn, what stands out, and that the terminal is given back."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable

import pytest

from taskserver.cli.terminal.screen import BEGIN, END
from taskserver.cli.terminal.watching import EVERY_SECONDS
from tests.support.processes import assert_one_line, run_on_terminal, wait_until
from tests.support.proxy import Proxy
from tests.support.queues import Queue
from tests.support.servers import MySQLServer
from tests.support.terminals import PersonsTerminal


def watch(queue: Queue, size: tuple[int, int] = (120, 30), **env: str) -> PersonsTerminal:
    """Begins to watch, and waits for the first picture."""
    terminal = PersonsTerminal(queue.deployment, command_of(queue), size, **env)
    terminal.wait_for_picture("every 2 s")
    return terminal


def command_of(queue: Queue) -> list[str]:
    return [queue.deployment.python, str(queue.folder / "client.py"), "status", "--watch"]


def assert_given_back(terminal: PersonsTerminal) -> None:
    """Another screen was entered once and left once, the cursor is there, and keys are echoed as before."""
    assert [terminal.output.count(words) for words in (BEGIN, END)] == [1, 1]
    assert terminal.output.endswith(END)
    assert terminal.modes() == terminal.modes_before
    assert "Traceback" not in terminal.output


@pytest.mark.parametrize("end", ["\x03", "q", "\x1c", signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_it_the_terminal_is_as_it_was_and_the_code_is_0(
    sqlite_queue: Queue, end: str | signal.Signals
) -> None:
    terminal = watch(sqlite_queue)
    assert terminal.modes() != terminal.modes_before
    terminal.type("x")
    terminal.type(end) if isinstance(end, str) else terminal.signal(end)
    assert terminal.end() == 0
    assert_given_back(terminal)


def test_a_second_ctrl_c_disturbs_nothing(sqlite_queue: Queue) -> None:
    terminal = watch(sqlite_queue)
    terminal.type("\x03\x03")
    terminal.signal(signal.SIGTERM)
    assert terminal.end() == 0
    assert_given_back(terminal)


def test_what_changed_since_the_last_look_stands_out(one_queue: Queue) -> None:
    one_queue.add_many([(3, 0), (3, 4), (5, 0)])
    terminal = watch(one_queue)
    first = terminal.picture()
    assert "\x1b[7m" not in "".join(first)
    assert "\x1b[33mlook\x1b[0m: 1 task is fatal" in "\n".join(first)
    one_queue.add_many([(5, 0), (6, 0)])
    picture = terminal.wait_for_picture("\x1b[7m")
    assert standing_out(picture) == ["5: 2", "6: 6 1 0 0 0 0 0 0 " + seconds_of(picture), "all: 4"]
    later = terminal.wait_for_picture("6  ", "every 2 s")
    while "\x1b[7m" in "".join(later):
        later = terminal.picture()
    assert [line.split()[:2] for line in later if line.split()[:1] in (["5"], ["6"])] == [["5", "2"], ["6", "1"]]


def standing_out(picture: list[str]) -> list[str]:
    """Of each line that differs its first word, and the words that stand out."""
    found = []
    for line in picture:
        words = re.findall(r"\x1b\[7m(.*?)\x1b\[27m", line)
        if words:
            found.append(f"{re.sub(chr(27) + r'.[0-9]*m', '', line).split()[0]}: {' '.join(words)}")
    return found


def seconds_of(picture: list[str]) -> str:
    """The age of the oldest task of group 6."""
    return str(re.findall(r"(\d+ s)\x1b\[27m", "\n".join(picture))[0])


@pytest.mark.long
def test_without_colours_an_asterisk_stands_before_a_line_that_changed(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.note", group_id=3)
    terminal = watch(sqlite_queue, NO_COLOR="1")
    assert not [line for line in terminal.picture() if line.startswith("*")]
    sqlite_queue.add("tasks.note", group_id=3)
    picture = terminal.wait_for_picture("* 3")
    assert [line[:5] for line in picture if line.startswith("*")] == ["* 3  ", "* all"]
    assert "\x1b[" not in "".join(picture)


def test_another_size_is_drawn_at_once_and_a_small_terminal_tells_how_much_more_there_is(sqlite_queue: Queue) -> None:
    sqlite_queue.add_many([(group, 0) for group in range(10)])
    terminal = watch(sqlite_queue, (100, 50))
    whole = terminal.picture()
    terminal.resize(40, 8)
    picture = terminal.wait_for_picture("more lines")
    assert len(picture) == 8
    assert picture[-1].split() == ["…", str(len(whole) - 7), "more", "lines"]
    assert all(len(re.sub(r"\x1b\[\d+m", "", line)) < 40 for line in picture)
    terminal.resize(1, 1)
    terminal.wait_for_picture("")
    terminal.resize(100, 50)
    terminal.wait_for_picture(whole[-1])


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_again(sqlite_queue: Queue) -> None:
    script = 'set -m; "$@"; echo "stopped with $?"; stty -a; read line; fg; echo "ended with $?"'
    terminal = PersonsTerminal(sqlite_queue.deployment, ["/bin/sh", "-c", script, "sh", *command_of(sqlite_queue)])
    terminal.wait_for_picture("every 2 s")
    terminal.type("\x1a")
    terminal.wait_for_output("stopped with")
    assert END in terminal.output
    assert terminal.modes() == terminal.modes_before
    begun = len(terminal.output)
    terminal.type("\n")
    wait_until(lambda: f"{BEGIN}\x1b[H" in terminal.output[begun:])
    assert terminal.modes() != terminal.modes_before
    terminal.type("q")
    terminal.wait_for_output("ended with 0")
    assert terminal.end() == 0
    assert [terminal.output[begun:].count(words) for words in (BEGIN, END)] == [1, 1]
    assert terminal.modes() == terminal.modes_before


def test_after_a_stop_that_no_program_hears_of_it_takes_the_terminal_again(sqlite_queue: Queue) -> None:
    terminal = watch(sqlite_queue)
    modes = terminal.modes()
    terminal.signal(signal.SIGSTOP)
    os.waitid(os.P_PID, terminal.process.pid, os.WSTOPPED)
    terminal.set_modes(terminal.modes_before)  # as a shell does then
    terminal.signal(signal.SIGCONT)
    wait_until(lambda: terminal.modes() == modes)
    terminal.type("q")
    assert terminal.end() == 0
    assert_given_back(terminal)


@pytest.mark.long
def test_a_database_that_goes_away_is_told_above_the_last_picture_until_it_is_back(
    make_queue: Callable[..., Queue], mysql_dsn: str, mysql_server: MySQLServer
) -> None:
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        queue = make_queue(proxy.dsn(mysql_dsn))
        queue.add("tasks.note", group_id=7)
        terminal = watch(queue)
        proxy.refuse()
        proxy.reset()
        picture = terminal.wait_for_picture("no answer since", "trying again")
        assert any(line.split()[:2] == ["7", "1"] for line in picture)
        terminal.wait_for_picture("no answer since", "for 2 s")
        proxy.pass_on()
        while "no answer since" in "".join(terminal.picture()):
            terminal.wait_for_picture("every 2 s")
        terminal.type("\x03")
        assert terminal.end() == 0
        assert_given_back(terminal)


def test_while_a_look_waits_for_its_database_a_new_size_is_drawn_and_ctrl_c_ends_it(
    make_queue: Callable[..., Queue], mysql_dsn: str, mysql_server: MySQLServer
) -> None:
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        queue = make_queue(proxy.dsn(mysql_dsn))
        queue.add_many([(group, 0) for group in range(10)])
        terminal = watch(queue)
        proxy.stall()
        wait_until(lambda: terminal.quiet_seconds() > EVERY_SECONDS + 0.5)
        terminal.resize(40, 8)
        terminal.wait_for_picture("more lines")
        terminal.type("\x03")
        assert terminal.end() == 0
        assert_given_back(terminal)


def test_a_first_look_that_fails_is_told_as_by_any_command(sqlite_queue: Queue) -> None:
    sqlite_queue.sql("DROP TABLE jobs_queue_schema")
    ended = run_on_terminal(sqlite_queue.deployment, "client.py", "status", "--watch")
    assert ended.code == 1
    assert ended.screen.startswith("client.py: ")
    assert "\x1b" not in ended.screen


def test_without_a_whole_terminal_one_line_names_what_does_it(sqlite_queue: Queue) -> None:
    assert_one_line(sqlite_queue.client("status", "--watch"), 2, "watch -n2 python3 client.py status")
    assert_one_line(sqlite_queue.client("status", "--watch", "--json"), 2, "--json")
    dumb = run_on_terminal(sqlite_queue.deployment, "client.py", "status", "--watch", TERM="dumb")
    assert (dumb.code, "\x1b" in dumb.screen) == (2, False)


@pytest.mark.long
def test_keys_may_come_from_elsewhere_than_the_terminal(sqlite_queue: Queue) -> None:
    script = 'exec "$@" </dev/null'
    terminal = PersonsTerminal(sqlite_queue.deployment, ["/bin/sh", "-c", script, "sh", *command_of(sqlite_queue)])
    terminal.wait_for_picture("every 2 s")
    first = terminal.output.count("every 2 s")
    terminal.type("q")
    sqlite_queue.add("tasks.note", group_id=3)
    terminal.wait_for_picture("\x1b[7m3\x1b[27m")
    assert terminal.output.count("every 2 s") <= first + 2
    terminal.type("\x03")
    assert terminal.end() == 0
