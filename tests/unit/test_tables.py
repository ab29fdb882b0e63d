"""Tables, times and colours as people see them: fitted to a terminal, in line, in the host's time zone."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import Any

import pytest

from taskserver.cli.terminal import instants, output
from taskserver.cli.terminal.instants import in_column
from taskserver.cli.terminal.output import MAX_CELL, MAX_LAST_CELL, MIN_CELL, Word, in_units, print_table
from taskserver.cli.terminal.style import cut, width_of

WIDE = {"世界": 4, "ｆｕｌｌ": 8, "🎉": 2, "ü": 1, "u\u0308": 1, "각": 2, "\u1100\u1161\u11a8": 2, "naïve": 5, "": 0}


@pytest.mark.parametrize(("text", "width"), WIDE.items(), ids=ascii)
def test_wide_characters_take_two_columns_and_combining_ones_none(text: str, width: int) -> None:
    assert width_of(text) == width
    assert cut(text, width) == text


@pytest.mark.parametrize("text", ["a世界bc", "🎉🎉🎉", "u\u0308u\u0308u\u0308u\u0308", "plain text"], ids=ascii)
def test_a_cut_text_fits_and_ends_in_an_ellipsis(text: str) -> None:
    for most in range(1, width_of(text)):
        shorter = cut(text, most)
        assert most - 1 <= width_of(shorter) <= most  # one column may stay empty before a wide character
        assert shorter.endswith("…")
        assert text.startswith(shorter[:-1])


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


HEADS = ("id", "task", "error")
ROWS: Sequence[Sequence[object]] = (
    (7, "tasks.send_letter", "OSError: " + "x" * 100),
    (12345, "tasks.grüße_世界", "短い"),
)


@pytest.mark.parametrize("columns", [50, 60, 80, 100, 140, 300])
def test_a_table_fits_its_terminal_and_stays_in_line(screen: Screen, columns: int) -> None:
    screen.columns = columns
    head, *lines = screen.show(HEADS, ROWS)
    assert max(map(width_of, lines)) <= columns
    at = {width_of(line[: line.index(word)]) for line, word in zip((head, *lines), ("error", "OSE", "短"), strict=True)}
    assert len(at) == 1
    assert ("x" * 100 in lines[0]) == (columns >= 140)
    assert lines[0].startswith("    7  tasks.send_l")  # numbers are whole, and aligned to the right


def test_without_a_terminal_a_cell_is_cut_at_a_fixed_width(screen: Screen) -> None:
    _, first = screen.show(("task", "error"), [("t" * 100, "x" * 600)], unless_narrow=("task",))
    assert first.split("  ") == ["t" * (MAX_CELL - 1) + "…", "x" * (MAX_LAST_CELL - 1) + "…"]


@pytest.mark.parametrize(("columns", "left_out"), [(80, []), (30, ["task"]), (26, ["task", "id"]), (5, ["task", "id"])])
def test_a_narrow_terminal_shows_fewer_columns_and_names_the_others(
    screen: Screen, columns: int, left_out: list[str]
) -> None:
    screen.columns = columns
    head, first, *_, last = screen.show(HEADS, ROWS, unless_narrow=("task", "id"))
    assert head.split() == [name for name in HEADS if name not in left_out]
    assert (last == f"(a wider terminal, a pipe and --json also have: {', '.join(left_out)})") == bool(left_out)
    assert MIN_CELL <= width_of(first) <= max(columns, MIN_CELL)


def test_columns_that_are_never_cut_are_left_out_where_they_do_not_fit(screen: Screen) -> None:
    screen.columns = 15
    head, line, last = screen.show(
        ["done", "ran", "mean"], [[12345, in_units(90), in_units(0.5)]], unless_narrow=["mean"]
    )
    assert (head.split(), width_of(line) <= 15) == (["done", "ran"], True)
    assert "mean" in last
    screen.columns = 80
    assert screen.show(["done", "ran"], [[1, in_units(90)]], unless_narrow=["ran"])[0].split() == ["done", "ran"]


def test_words_and_instants_are_never_cut(screen: Screen) -> None:
    screen.columns = 40
    whole = (Word("in_progress"), in_column("2026-01-31 23:30:00.123456"), in_units(90))
    _, line = screen.show(["status", "since", "ran", "error"], [[*whole, "x" * 100]])
    assert line.split("  ")[:3] == ["in_progress", *map(str, whole[1:])]


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
    monkeypatch.setattr(instants, "zone", lambda: "CET")
    assert instants.headed("created") == "created (CET)"
    assert instants.in_column("2026-01-31 23:30:00.123456") == "2026-02-01 00:30:00"
    assert instants.in_column("2026-07-31 12:00:00.123456") == "2026-07-31 14:00:00 CEST"
    assert instants.in_column("2026-01-31 11:00:00", 16) == "2026-01-31 12:00"
    assert instants.in_sentence("2026-01-31 11:00:00.500000") == "2026-01-31 12:00:00 CET"
    assert instants.exactly("2026-07-31 12:00:00.000001") == "2026-07-31 14:00:00.000001 CEST"
    assert instants.time_of_day("2026-01-31 11:00:00") == "12:00 CET"


@pytest.mark.parametrize("text", ["soon", "0000-00-00 00:00:00.000000", "9999-12-31 23:59:59.999999", ""])
@pytest.mark.usefixtures("berlin")
def test_a_time_that_a_row_made_up_stays_as_it_is(text: str) -> None:
    assert {show(text) for show in (instants.in_column, instants.in_sentence, instants.exactly)} == {text}
    assert instants.in_column(None) == ""


def test_spans_are_written_in_the_unit_that_a_person_would_use() -> None:
    spans = {None: "", 0.0005: "0.5 ms", 0.25: "250 ms", 1.25: "1.2 s", 90: "90 s", 600: "10 min", 9000: "2.5 h"}
    assert {seconds: str(in_units(seconds)) for seconds in spans} == spans
