"""The section "Growth" of docs/benchmarks.md, and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10
from typing import Any

from .bases import BASES, databases
from .page import DOCS, table, write_section

TITLE = "Growth"
PICTURE = "pictures/growth.svg"
INTRODUCTION = """\
`make bench-growth` made this on {date}: {machine}; Python {python}; {databases}. Each commit was flushed to the disk.

Half of the rows are new tasks of three groups, the others are done, and 1 in 100 is fatal. Each cell has the median of
11 to 200 times (*prune*: 3) in milliseconds, and in brackets how many times the first column's. *start and finish* is
what a task costs: the finish of one task and the start of the next in one commit. *an empty run* looks for a group
without tasks. *status* and *the page* count at most 100,000 rows, an equal share of each group and status: they grow
until each share is full. *prune* deletes 1,000 done rows, as `TASKSERVER_KEEP` lets each run do. How many rows and
index entries MariaDB reads does not depend on the machine.
"""
BACK = """\
Tasks were added in portions of up to a million, by SQL in the database, and two workers ran them in batches of 500.
*a second* counts both. Then 10,000 tasks waited in this queue and in a new one, and 20 claims of 100 were measured in
each in turn, at once, without a pause for the database. *disk* is what a queue's tables and indexes take; at most, at
the end of a portion. Then [`client.py compact`](operating.md#disk-space) ran, and the same was measured again.
"""


def write(titles: Mapping[str, str], data: Mapping[str, Any]) -> None:
    """Into the page and its picture; `titles` are those of the steps."""
    if data.get("growth"):
        (DOCS / PICTURE).write_text(picture(titles, data["growth"]))
    write_section(TITLE, text(titles, data))


def text(titles: Mapping[str, str], data: Mapping[str, Any]) -> str:
    """The section, without its heading."""
    parts = [INTRODUCTION.format(**data, databases=databases(data["versions"]))]
    if growth := data.get("growth"):
        parts.append(f"![Milliseconds by the number of rows]({PICTURE})\n")
        tables = [
            _grown(titles, f"{base.title}, ms", growth[kind], "ms") for kind, base in BASES.items() if kind in growth
        ]
        if "mysql" in growth:
            tables.append(_grown(titles, "MariaDB, rows read", growth["mysql"], "rows_read"))
        parts += [part for one in tables for part in (one, "")]
    if back := data.get("back"):
        parts += ["### The way back\n", BACK, _back(back)]
    return "\n".join(parts)


def _grown(titles: Mapping[str, str], head: str, found: Mapping[str, Any], figure: str) -> str:
    sizes = sorted(found, key=int)
    lines = []
    for step, title in titles.items():
        values = [found[size].get(step, {}).get(figure) for size in sizes]
        lines.append([title, *("" if value is None else _cell(value, values[0]) for value in values)])
    return table([head, *(f"{int(size):,} rows" for size in sizes)], lines)


def _cell(value: float, first: float | None) -> str:
    shown = f"{value:,.0f}" if value >= 10 or isinstance(value, int) else f"{value:.2f}"
    return f"{shown} (×{value / first:.2f})" if first and value != first else shown


def _back(back: Mapping[str, Any]) -> str:
    rows = []
    for kind, base in BASES.items():
        for tasks, found in sorted(back.get(kind, {}).items(), key=lambda item: int(item[0])):
            if "compacted" in found:
                after, compacted = found["after"], found["compacted"]
                claims = [f"{one['ms']:.1f} ms (a new queue {one['new_ms']:.1f})" for one in (after, compacted)]
                sizes = [after["new_mb"], found["peak_mb"], after["mb"], compacted["mb"]]
                disk = [f"{mb:,.1f} MB" for mb in sizes]
                rate = f"{found['tasks_a_second']:,.0f}"
                rows.append([base.title, f"{int(tasks):,}", rate, *claims, *disk, f"{compacted['seconds']:.1f} s"])
    heads = ["", "tasks", "a second", "claim after the tasks", "compacted"]
    return table([*heads, "disk, new queue", "at most", "after the tasks", "compacted", "compact took"], rows)


# ---- the picture

WIDTH, HEIGHT, PANEL, TOP, LEFT, BOTTOM = 900, 400, 280, 70, 46, 40
COLOURS = ("#2f7ed8", "#c9513a", "#3f9c55", "#a05ac8", "#c58a11", "#1f9aa3", "#888888")
"""All of them can be read on white and on black."""
STYLE = """
text { fill: #222; font: 12px sans-serif }
.grid { stroke: #8885; stroke-width: 1 }
.line { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } }
"""


def picture(titles: Mapping[str, str], growth: Mapping[str, Any]) -> str:
    """A panel for each database, with logarithmic axes: milliseconds by rows."""
    kinds = [kind for kind in BASES if kind in growth]
    every = [cell["ms"] for kind in kinds for steps in growth[kind].values() for cell in steps.values()]
    low, high = floor(log10(min(every))), ceil(log10(max(every)))
    parts = [f"<style>{STYLE}</style>"]
    for number, title in enumerate(titles.values()):
        x = 16 + number * 125
        parts.append(f'<path class="line" d="M{x} 20h18" stroke="{COLOURS[number]}"/>')
        parts.append(f'<text x="{x + 24}" y="24">{escape(title)}</text>')
    for panel, kind in enumerate(kinds):
        parts += _panel(
            16 + panel * (PANEL + 15), BASES[kind].title, list(titles), growth[kind], low, max(high, low + 1)
        )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    return "\n".join([head, "<title>Milliseconds by the number of rows</title>", *parts, "</svg>"]) + "\n"


def _panel(x: int, name: str, steps: Sequence[str], found: Mapping[str, Any], low: int, high: int) -> list[str]:
    sizes = sorted(map(int, found))
    first, decades = log10(sizes[0]), max(log10(sizes[-1] / sizes[0]), 1)
    left, right, bottom = x + LEFT, x + PANEL - 12, HEIGHT - BOTTOM

    def place(rows: float, ms: float) -> tuple[float, float]:
        across, up = (log10(rows) - first) / decades, (log10(ms) - low) / (high - low)
        return round(left + across * (right - left), 1), round(bottom - up * (bottom - TOP), 1)

    parts = [f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{escape(name)}, ms</text>']
    for power in range(low, high + 1):
        _, y = place(sizes[0], 10.0**power)
        parts.append(f'<path class="grid" d="M{left} {y}H{right}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{10.0**power:g}</text>')
    for size in sizes:
        across, _ = place(size, 1)
        parts.append(f'<path class="grid" d="M{across} {TOP}V{bottom}"/>')
        parts.append(f'<text x="{across}" y="{bottom + 18}" text-anchor="middle">{_short(size)}</text>')
    for number, step in enumerate(steps):
        points = [place(size, found[str(size)][step]["ms"]) for size in sizes if step in found[str(size)]]
        if points:
            path = "L".join(f"{across} {y}" for across, y in points)
            parts.append(f'<path class="line" d="M{path}" stroke="{COLOURS[number]}"/>')
            parts += [f'<circle cx="{across}" cy="{y}" r="3" fill="{COLOURS[number]}"/>' for across, y in points]
    return parts


def _short(number: int) -> str:
    return f"{number / 1e6:g} M" if number >= 1_000_000 else f"{number / 1e3:g} k"
