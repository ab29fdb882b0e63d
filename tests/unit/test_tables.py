"""Tables, times and colours as people see them: fitted to a terminal, in line, in the host's time zone."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import redirect_stdout
from datetime import datetime, timezone
from typing import Any

import pytest

from taskserver.cli.terminal import output
from taskserver.cli.terminal.output import (
    MAX_CELL,
    MAX_LAST_CELL,
    Word,
    headed,
    in_column,
    print_table,
)
from taskserver.messages.text import exactly, in_sentence, iso, on_day, time_of_day, utc


class Screen(io.StringIO):
    """A terminal of some width, or none."""

    columns: int | None = None

    def isatty(self) -> bool:
        return self.columns is not None

    def show(self, *table: Any, **options: Any) -> list[str]:
        """The lines of a table on it."""
        self.seek(0)
        self.truncate()
        with redirect_stdout(self):
            print_table(*table, **options)
        return self.getvalue().splitlines()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setattr(output, "terminal_width", lambda stream: stream.columns)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    return Screen()


@pytest.mark.parametrize(
    ("columns", "task", "error"), [(None, MAX_CELL, MAX_LAST_CELL), (300, 60, 231), (100, 45, 46), (40, 20, 20)]
)
def test_long_cells_are_cut_until_a_row_is_one_line(screen: Screen, columns: int | None, task: int, error: int) -> None:
    screen.columns = columns
    head, first, second = screen.show(("id", "task", "error"), [(7, "t" * 100, "x" * 600), (12345, "tasks.a\n", None)])
    assert head == f"   id  {'task':<{task}}  error"
    assert first == f"    7  {'t' * (task - 1)}…  {'x' * (error - 1)}…"
    assert second == "12345  tasks.a\\n"


HEADS = ("id", "status", "group", "priority", "attempts", "created (UTC)", "ran", "due", "task", "arguments", "error")
ROW = (170_000, "running", 3, 0, 1, "2026-01-31 12:00:00", "2.5 h", "", "tasks.send_letter", "x" * 99, "e" * 99)


@pytest.mark.parametrize(("columns", "missing"), [(300, []), (80, ["priority", "ran", "created (UTC)", "arguments"])])
def test_a_narrow_terminal_shows_no_column_that_can_be_spared(screen: Screen, columns: int, missing: list[str]) -> None:
    screen.columns = columns
    lines = screen.show(HEADS, [ROW], spare=("priority", "ran", "created (UTC)", "arguments", "attempts"))
    assert {head for head in HEADS if head not in lines[0]} == set(missing)
    assert max(map(len, lines)) <= columns
    assert lines[2:] == [f"a wider terminal also shows: {', '.join(missing)}"] * bool(missing)


def test_colours_are_for_terminals_that_want_them_and_change_no_width(
    screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = (["status", "task"], [[Word("fatal"), "fatal"], [Word("new"), "tasks.a"]])
    screen.columns = 80
    plain = screen.show(*table)
    assert plain == ["status  task", "fatal   fatal", "new     tasks.a"]
    monkeypatch.delenv("NO_COLOR")
    # Of the status alone, not of a text that reads alike.
    assert screen.show(*table) == [
        "\x1b[1mstatus\x1b[0m  \x1b[1mtask\x1b[0m",
        "\x1b[31mfatal\x1b[0m   fatal",
        "new     tasks.a",
    ]
    monkeypatch.setenv("TERM", "dumb")
    assert screen.show(*table) == plain
    monkeypatch.setenv("TERM", "xterm")
    screen.columns = None
    assert screen.show(*table) == plain


# ---- times


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Written as a rule: a host may have no database of time zones.
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_times_are_those_of_the_host_and_name_its_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "zone", lambda: "CET")
    assert headed("created") == "created (CET)"
    winter, summer = (
        datetime(2026, 1, 31, 23, 30, tzinfo=timezone.utc),
        datetime(2026, 7, 31, 12, 0, 0, 1, timezone.utc),
    )
    assert in_column(winter) == "2026-02-01 00:30:00"
    assert in_column(summer) == "2026-07-31 14:00:00 CEST"
    assert in_column(winter, 16) == "2026-02-01 00:30"
    assert in_sentence(winter) == "2026-02-01 00:30:00 CET"
    assert exactly(summer) == "2026-07-31 14:00:00.000001 CEST"
    assert time_of_day(winter) == "00:30 CET"


@pytest.mark.usefixtures("berlin")
def test_a_time_that_a_row_made_up_is_none_and_one_at_the_end_of_time_stays_in_utc() -> None:
    made_up: list[Any] = ["soon", "0000-00-00 00:00:00.000000", "", 7, None]
    assert {utc(text) for text in made_up} == {None}
    assert in_column(None) == in_sentence(None) == exactly(None) == on_day(None) == ""
    last = utc("9999-12-31 23:59:59.999999")
    assert exactly(last) == "9999-12-31 23:59:59.999999 UTC"
    assert iso(utc("0001-01-01 00:00:00")) == "0001-01-01T00:00:00.000000Z"
