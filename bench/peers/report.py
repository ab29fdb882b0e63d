"""The results as a section of docs/benchmarks.md, with a picture."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ..bases import BASES, databases
from ..page import DOCS, Bar, bars, table, write_section
from .peer import Peer
from .speed import DRAIN_SECONDS, Part

TITLE = "Beside the peers"
PICTURE = "pictures/peers.svg"
SHOWN = {"Django", "django-tasks", "SQLAlchemy", "kombu", "peewee", "uvloop"}
SHOWN |= {"mysqlclient", "PyMySQL", "psycopg", "psycopg2-binary", "asyncpg", "php-mysql", "ruby-mysql2"}
"""Packages whose versions are shown, beside each queue's own."""
INTRODUCTION = """\
`make bench-peers` made this on {date}, on {machine}.
The databases were {databases}. All were durable: each commit was flushed to the disk, except where a row says
"no fsync". All queues of a database ran in turns. Each cell has the median, the lowest and the highest of {rounds}
rounds. Below it stands how many times as fast, or as small, taskserver was in the same rounds: by itself, then with
`commit_every`, where tasks share commits. The tasks did nothing but append a byte to a file, by which they were
counted. The starts of workers are not in the figures. Workers ran until all was done, of 1,000,000 waiting tasks the
first 5,000, but not longer than {seconds:.0f} seconds; the fastest for less than half a second.

"As safe" means that a task is on the disk when the call that adds it returns, and that it runs without a person's help
if its worker is killed. Only such queues do the same work as taskserver.
"""
KILLS = """\
Four workers ran 2,000 tasks of about 5 ms, each of which wrote a number into a table. 20 times one of the workers got
SIGKILL, with its child processes. A plain loop started each worker again a second after it had ended. A task that was
still in the queue five minutes after the last kill was stuck. Where one can say after what time a killed worker's task
runs again, that was 60 s, if the notes do not say otherwise. taskserver then waits for its first backoff, 60 s more.
"""


NOT_MEASURED = """
Not measured: Solid Queue (Rails), which Debian 12 does not have; and queues on Redis or RabbitMQ.
"""


def write(peers: Sequence[Peer], parts: Mapping[str, Part], data: Mapping[str, Any]) -> None:
    """Into the page and its picture."""
    (DOCS / PICTURE).write_text(picture(peers, data))
    write_section(TITLE, text(peers, parts, data))


def text(peers: Sequence[Peer], parts: Mapping[str, Part], data: Mapping[str, Any]) -> str:
    """The section, without its heading."""
    peers = [peer for peer in peers if any(peer.key in found for found in data["figures"].values())]
    date = time.strftime("%-d %B %Y", time.gmtime(data["finished"]))
    rounds = max(part.rounds for part in parts.values())
    words = {"date": date, "machine": data["machine"], "rounds": rounds, "seconds": DRAIN_SECONDS}
    lines = [INTRODUCTION.format(**words, databases=databases(data["versions"]))]
    lines.append(f"![One worker, in tasks a second]({PICTURE})\n")
    for kind in BASES:
        if those := [peer for peer in peers if peer.base == kind]:
            lines += [f"### On {BASES[kind].title}\n", _speed(those, parts, data), ""]
    lines += ["### When workers are killed\n", KILLS, _kills(peers, data), "", "### Where taskserver is not first\n"]
    lines += _not_first(peers, parts, data) or ["Beside queues that are as safe: nowhere."]
    lines += ["", "### Versions, commands, and what is unfair\n"]
    families: dict[str, list[Peer]] = {}
    for peer in peers:
        families.setdefault(peer.name.partition(",")[0], []).append(peer)
    lines += [_about(name, family, data) for name, family in families.items()]
    lines += [NOT_MEASURED]
    return "\n".join(lines)


def _speed(peers: Sequence[Peer], parts: Mapping[str, Part], data: Mapping[str, Any]) -> str:
    shown = {name: part for name, part in parts.items() if any(data["figures"].get(name, {}).get(p.key) for p in peers)}
    heads = ["queue", *(f"{part.title}, {part.unit}" for part in shown.values())]
    rows = [[_name(peer), *(_cell(name, part, peer, peers, data) for name, part in shown.items())] for peer in peers]
    return table(heads, rows)


def _name(peer: Peer) -> str:
    return f"**{peer.name}**" if peer.is_ours else peer.name + ("" if peer.is_safe else " (less safe)")


def _cell(name: str, part: Part, peer: Peer, peers: Sequence[Peer], data: Mapping[str, Any]) -> str:
    found = data["figures"].get(name, {}).get(peer.key)
    if not found:
        return "failed" if name in data["errors"].get(peer.key, {}) else ""
    cell = f"{_number(median(found))}<br>{_number(min(found))}–{_number(max(found))}"
    if peer.is_ours:
        return cell
    ours = [ratio for own in _ours(peers) if (ratio := _ratio(name, part, own, peer, data))]
    return cell + "".join(f"<br>×{ratio:.2g}" if ratio < 10 else f"<br>×{ratio:.0f}" for ratio in ours)


def _ours(peers: Sequence[Peer]) -> list[Peer]:
    """Ours with a worker, in the order of the ratios."""
    return [peer for peer in peers if peer.is_ours and peer.has("drain_1")]


def _ratio(name: str, part: Part, own: Peer, peer: Peer, data: Mapping[str, Any]) -> float | None:
    """How many times as fast, or as small, ours is: the median of the rounds."""
    above, below = (data["figures"].get(name, {}).get(each.key, []) for each in (own, peer))
    if not part.more_is_better:
        above, below = below, above
    ratios = [one / other for one, other in zip(above, below, strict=False) if other]
    return median(ratios) if ratios else None


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _kills(peers: Sequence[Peer], data: Mapping[str, Any]) -> str:
    heads = ["queue", "database", "durable when added", "promises", "lost", "stuck", "run twice", "all had run after"]
    rows = []
    for peer in peers:
        found = data["kills"].get(peer.key)
        if found:
            after = f"{found['seconds']:.0f} s" if found["seconds"] >= 0 else "never"
            durable = "yes" if peer.safety.durable else "no"
            counts = [str(int(found[key])) for key in ("lost", "stuck", "twice")]
            rows.append([_name(peer), BASES[peer.base].title, durable, peer.safety.runs, *counts, after])
    return table(heads, rows)


def _not_first(peers: Sequence[Peer], parts: Mapping[str, Part], data: Mapping[str, Any]) -> list[str]:
    """A line for each reason why queues that are as safe, or have such a reason, are better than ours in something."""
    found: dict[str, list[str]] = {}
    for peer in peers:
        ahead = []
        for name, part in parts.items():
            own = [each for each in _ours(peers) if each.base == peer.base]
            ratios = [f"×{ratio:.2f}" for each in own if (ratio := _ratio(name, part, each, peer, data))]
            if ratios and float(ratios[0][1:]) < 1:
                ahead.append(f"{part.title} ({' and '.join(ratios)})")
        if ahead and (peer.is_safe or peer.lead) and not peer.is_ours:
            found.setdefault(peer.lead, []).append(f"**{peer.name}** on {BASES[peer.base].title}: {', '.join(ahead)}")
    return [f"- {'; '.join(each)}. {lead}".rstrip() for lead, each in found.items()]


def _about(name: str, family: Sequence[Peer], data: Mapping[str, Any]) -> str:
    """Versions, without those of packages that only its own packages need; commands of a worker; notes."""
    words = [data["versions"].get(peer.key, "?").split() for peer in family]
    versions = [word for first, *more in words for word in (first, *(one for one in more if _package(one) in SHOWN))]
    commands = [f"<code>{peer.commands['work'].replace(sys.executable, 'python')}</code>" for peer in family]
    notes = [note for peer in family for note in peer.notes]
    errors = [
        f"on {BASES[peer.base].title} {where} failed: {error}"
        for peer in family
        for where, error in data["errors"].get(peer.key, {}).items()
    ]
    bases = dict.fromkeys(BASES[peer.base].title for peer in family)
    about = [", ".join(dict.fromkeys(versions)).replace("==", " "), *dict.fromkeys([*commands, *notes, *errors])]
    return f"- **{name}** on {', '.join(bases)}: {'; '.join(about)}."


def _package(word: str) -> str:
    return word.partition("==")[0]


def picture(peers: Sequence[Peer], data: Mapping[str, Any]) -> str:
    """One worker at 10,000 waiting tasks, on each database."""
    groups = {}
    for kind in BASES:
        found = [(peer, data["figures"].get("drain_1", {}).get(peer.key)) for peer in peers if peer.base == kind]
        group = [
            Bar(
                peer.name,
                median(of),
                min(of),
                max(of),
                "ours" if peer.is_ours else "safe" if peer.is_safe else "unsafe",
            )
            for peer, of in found
            if of
        ]
        if group:
            groups[BASES[kind].title] = group
    legend = {"ours": "taskserver", "safe": "as safe", "unsafe": "less safe"}
    return bars("One worker: tasks a second", groups, legend)
