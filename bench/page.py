"""docs/benchmarks.md: a section of it is written anew from the figures; and bars as SVG."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE = DOCS / "benchmarks.md"
WIDTH, LABEL, ROW, GAP = 860, 250, 22, 34


def write_section(title: str, text: str) -> None:
    """Replace the section that a benchmark wrote before, or add it at the end of the page. `title` is unique there."""
    begin, end = (f"<!-- {title}: {word} -->" for word in ("begin", "end"))
    section = f"{begin}\n## {title}\n\n{text.strip()}\n{end}\n"
    before, marked, rest = PAGE.read_text().partition(begin)
    after = rest.partition(end + "\n")[2] if marked else ""
    PAGE.write_text(before.rstrip() + "\n\n" + section + after)


def machine() -> str:
    """Processor, memory and system, in a line."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = platform.freedesktop_os_release().get("PRETTY_NAME", "") if os.path.exists("/etc/os-release") else ""
    return f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {system}, Linux {platform.release()}".replace(
        ", ,", ","
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; all columns but the first to the right."""
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


class Bar(NamedTuple):
    """A line of a picture; `colour` is one of COLOURS."""

    label: str
    middle: float
    low: float
    high: float
    colour: str


COLOURS = {"ours": "#1f5fa8", "safe": "#7d8ea3", "unsafe": "#d5b98c"}


def bars(title: str, groups: Mapping[str, Sequence[Bar]], legend: Mapping[str, str]) -> str:
    """Horizontal bars with their lowest and highest value, in groups that have a scale each."""
    y, parts = 58, [f'<text x="16" y="26" font-size="16" font-weight="bold">{escape(title)}</text>']
    x = 16.0
    for colour, meaning in legend.items():
        parts.append(f'<rect x="{x}" y="36" width="11" height="11" fill="{COLOURS[colour]}"/>')
        parts.append(f'<text x="{x + 16}" y="46">{escape(meaning)}</text>')
        x += 36 + 6.6 * len(meaning)
    for name, group in groups.items():
        y += GAP
        parts.append(f'<text x="16" y="{y - 8}" font-weight="bold">{escape(name)}</text>')
        scale = (WIDTH - LABEL - 110) / max(bar.high for bar in group)
        for bar in sorted(group, key=lambda bar: -bar.middle):
            length, low, high = (LABEL + value * scale for value in (bar.middle, bar.low, bar.high))
            parts += [
                f'<text x="{LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(bar.label)}</text>',
                f'<rect x="{LABEL}" y="{y + 3}" width="{length - LABEL:.1f}" height="15" '
                f'fill="{COLOURS[bar.colour]}"/>',
                f'<path d="M{low:.1f} {y + 10.5}H{high:.1f}" stroke="#111" stroke-width="1.5"/>',
                f'<text x="{max(high, length) + 6:.1f}" y="{y + 14}">{bar.middle:,.0f}</text>',
            ]
            y += ROW
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 16}" '
    head += 'font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{y + 16}" fill="#fff"/>', *parts, "</svg>"]) + "\n"
