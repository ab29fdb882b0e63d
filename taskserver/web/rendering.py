"""Templates → text: escaped by Jinja2, with filters for numbers, times and statuses."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from .. import __version__
from ..messages.programs import CLIENT, WORKER
from ..messages.text import age, error_in_shell, escaped, in_sentence, in_units, letters, on_day
from ..model.task import Status

TEMPLATES = Path(__file__).with_name("templates")
ASSETS = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
"""Files that a page loads, and their types."""


def render(template: str, values: Mapping[str, Any]) -> str:
    """The text of a template."""
    return _environment().get_template(template).render(**values)


@cache
def asset(name: str) -> str:
    """The text of one of ASSETS."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


@cache
def version_of(name: str) -> str:
    """Changes with an asset's text, for the caches of browsers."""
    return hashlib.sha256(asset(name).encode()).hexdigest()[:12]


def csp_hash(text: str) -> str:
    """The hash by which a content security policy allows a text."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _environment() -> Environment:
    # No package loader: the folder is always a plain one.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "age": age,
        "units": in_units,
        "at": in_sentence,
        "day": on_day,
        "ago": _ago,
        "error_in_shell": error_in_shell,
        "letters": letters,
        "lines": _lines,
        "iso": lambda instant: f"{instant:%Y-%m-%dT%H:%M:%SZ}" if instant else "",
        "count": _count,
        "plain": escaped,
        "meant": _name_meant,
        "sentence": lambda text: text if text.endswith((".", "?", "!")) else text + ".",
    }
    environment.globals |= {
        "client_py": CLIENT,
        "worker_py": WORKER,
        "Status": Status,
        "link": link,
        "prefix": "",  # of the ids in a page
        "version": __version__,
        "version_of": version_of,
        "asset": asset,
    }
    return environment


def link(view: str = "", **fields: Any) -> str:
    """A relative link to a view, valid wherever the page is mounted; fields of None are left out."""
    given = [("view", view)] if view else []
    for name, value in fields.items():
        several = value if isinstance(value, (list, tuple)) else [value]
        given += [(name, one) for one in several if one is not None]
    return f"?{urlencode(given, errors='replace')}"


def _name_meant(line: str) -> str | None:
    """The correct name of tasks with this error, if it suggests one."""
    found = re.fullmatch(r"BadTask: '([^']+)'.*; did you mean '([\w.:]+)'\?", line)
    if found is None or "." in found[2] or ":" in found[2]:
        return found and found[2]
    wrong = re.search(r" no (?:method )?'(\w+)'", line)  # a part of the name
    before, _, after = found[1].rpartition(wrong[1]) if wrong else ("", "", "")
    return f"{before}{found[2]}{after}" if before else None


def _lines(text: str) -> str:
    """A text of several lines with escaped control characters."""
    return "\n".join(escaped(line.replace("\t", "    ")) for line in text.split("\n"))


def _count(rows: int) -> str:
    """A number with a narrow space between its thousands."""
    return f"{rows:,}".replace(",", "\u202f")


def _ago(instant: datetime | None) -> str:
    """How long ago a time is, or in how long, by this host's clock; empty for None."""
    if instant is None:
        return ""
    seconds = (datetime.now(timezone.utc) - instant).total_seconds()
    return f"{age(seconds)} ago" if seconds >= 0 else f"in {age(-seconds)}"
