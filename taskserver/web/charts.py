"""Bars by the hour as pictures: the numbers of an SVG, which a template draws, and a table beside it tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import ceil, log10
from typing import NamedTuple

from ..messages.text import local
from ..stores.queue.stats import HourStats

WIDTH, HEIGHT = 720, 160
LEFT, BOTTOM, TOP = 72, 30, 14
"""Room for the numbers beside the bars, for the hours below, and above: for letters of a phone's size."""
HOURS_PER_LABEL = 6
DAY = 24


class Bar(NamedTuple):
    """A rectangle, and what it is drawn as."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    words: str
    """What it stands for."""


class Mark(NamedTuple):
    """A number or hour beside the bars."""

    text: str
    x: float
    y: float


class Chart(NamedTuple):
    """A picture of bars."""

    name: str
    title: str
    bars: Sequence[Bar]
    hours: Sequence[Mark]
    heights: Sequence[Mark]
    legend: Sequence[tuple[str, str]]
    """Kind and word of what is stacked."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT


Part = tuple[str, str, Callable[[HourStats], float]]
"""Kind, word and value of one part of a bar."""


def bars(
    name: str, title: str, hours: Sequence[HourStats], parts: Sequence[Part], words: Callable[[float], str]
) -> Chart:
    """A bar for each hour, whose parts stand one on the other; `words` writes a value."""
    most = _round_up(max((sum(value(hour) for *_, value in parts) for hour in hours), default=0))
    step = (WIDTH - LEFT) / max(len(hours), 1)
    scale = (HEIGHT - BOTTOM - TOP) / most
    drawn = []
    for number, hour in enumerate(hours):
        x, y = LEFT + number * step, float(HEIGHT - BOTTOM)
        for kind, word, value in parts:
            height = value(hour) * scale
            if height:
                height = max(height, 1.0)  # one of ten thousand is to be seen, too
                y -= height
                text = f"{_hour(hour)}: {words(value(hour))} {word}"
                drawn.append(Bar(kind, x + step * 0.1, y, step * 0.8, height, text))
    heights = [Mark(words(most * part), LEFT - 6, HEIGHT - BOTTOM - most * part * scale) for part in (0.0, 0.5, 1.0)]
    labels = [Mark(text, LEFT + number * step, HEIGHT - 6) for number, text in _labels(hours)]
    return Chart(name, title, drawn, labels, heights, [(kind, word) for kind, word, _ in parts])


def _labels(hours: Sequence[HourStats]) -> Iterator[tuple[int, str]]:
    """The hours that are named, by their places: some of a day, or the begin of each of several days."""
    for number, hour in enumerate(hours):
        if len(hours) <= DAY:
            if number % HOURS_PER_LABEL == 0:
                yield number, _hour(hour)
        elif (found := local(hour.hour)) and found.hour == 0 and number <= len(hours) - DAY // 2:
            yield number, f"{found:%a}"


def _hour(one: HourStats) -> str:
    found = local(one.hour)
    return f"{found:%H:%M}" if found else one.hour


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, 50 and so on."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (ceil(log10(value)) - 1)
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power * 1.000001)
