"""Stretches of time: how they are merged, and when a worker could not reach its database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.support.proxy import Link


class Span(NamedTuple):
    """A stretch of time."""

    began: float
    ended: float


def merged(spans: Iterable[Span], gap: float) -> list[Span]:
    """Spans in order, those that are no more than `gap` apart made one."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.began <= joined[-1].ended + gap:
            joined[-1] = Span(joined[-1].began, max(joined[-1].ended, span.ended))
        else:
            joined.append(span)
    return joined


def unreached(links: Sequence[Link], within: Span) -> list[Span]:
    """When a worker's process had no connection that worked: none at all, or one that had lost its bytes."""
    spans = []
    reached_until = within.began
    for link in sorted(links, key=lambda link: link.opened_at):
        if (link.closed_at is not None and link.closed_at < within.began) or link.opened_at > within.ended:
            continue
        closed_at = within.ended if link.closed_at is None else link.closed_at
        worked_until = closed_at if link.lost_at is None else link.lost_at
        if link.opened_at > reached_until:
            spans.append(Span(reached_until, link.opened_at))
        if worked_until < closed_at:
            spans.append(Span(worked_until, closed_at))
        reached_until = max(reached_until, worked_until)
    if reached_until < within.ended:
        spans.append(Span(reached_until, within.ended))
    return spans
