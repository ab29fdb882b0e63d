"""Hourly bars as numbers for an SVG in a template. Widths are percents, so that texts keep their size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ..messages.text import in_sentence, local
from ..stores.queue.stats import HourStats

HEIGHT, BOTTOM, TOP = 160, 24, 10
"""Pixels of a chart, below its bars for the hours, and above them."""
HOURS_PER_LABEL = 6
DAY = 24


class Bar(NamedTuple):
    """A rectangle with its kind and its words."""

    kind: str
    x: float
    y: float
    width: float
    height: float
    words: str


class Mark(NamedTuple):
    """A number beside the bars, or an hour below them."""

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
    """Kind and word of each part."""


Part = tuple[str, str, Callable[[HourStats], float]]
"""Kind, word and value of one part of a bar."""


def bars(
    name: str, title: str, hours: Sequence[HourStats], parts: Sequence[Part], words: Callable[[float], str]
) -> Chart:
    """A stacked bar for each hour; `words` formats a value."""
    most = max((sum(value(hour) for *_, value in parts) for hour in hours), default=0) or 1
    step, ground, scale = 100 / max(len(hours), 1), HEIGHT - BOTTOM, (HEIGHT - BOTTOM - TOP) / most
    drawn = []
    for number, hour in enumerate(hours):
        y = float(ground)
        for kind, word, value in parts:
            if value(hour):
                height = max(value(hour) * scale, 1.0)  # even one of ten thousand is visible
                y -= height
                text = f"{_hour(hour)}: {words(value(hour))} {word}"
                drawn.append(Bar(kind, number * step + step * 0.1, y, step * 0.8, height, text))
    heights = [Mark(words(most * part), 0, ground - most * part * scale) for part in (0.0, 1.0)]
    labels = [Mark(text, number * step, HEIGHT - 6) for number, text in _labels(hours)]
    return Chart(name, title, drawn, labels, heights, [(kind, word) for kind, word, _ in parts])


def _labels(hours: Sequence[HourStats]) -> Iterator[tuple[int, str]]:
    """The labels by their positions: some hours of a day, or the begins of several days."""
    for number, hour in enumerate(hours):
        if len(hours) <= DAY:
            if number % HOURS_PER_LABEL == 0:
                yield number, _hour(hour)
        elif local(hour.hour).hour == 0 and number <= len(hours) - DAY // 2:
            yield number, in_sentence(hour.hour, "%a")


def _hour(one: HourStats) -> str:
    return in_sentence(one.hour, "%H:%M")
