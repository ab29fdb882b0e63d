"""Checks of the status page's settings, where there are any."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ..errors import SettingError
from ..settings.page import PageSettings, load_page_settings
from .finding import Finding, ok, warning

PACKAGES = ("jinja2", "markupsafe", "werkzeug", "itsdangerous")


def findings(folder: Path, env_file: Path | None = None) -> Iterator[Finding]:
    """One finding where the page is set up, or was meant to be."""
    try:
        settings = load_page_settings(folder, env_file=env_file)
    except SettingError as error:
        yield warning("page", str(error), "the page shows nothing", "put it right in .env; docs/page.md says how")
        return
    if settings != PageSettings():
        yield _finding(settings)


def _finding(settings: PageSettings) -> Finding:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        return warning(
            "page",
            f"the page is set up, and this Python lacks {', '.join(missing)}",
            "the page says only that, unless another Python serves it",
            "upload the bundle that was made with --web, or install what docs/page.md says",
        )
    who = [words for words, is_so in _who(settings) if is_so]
    acts = "may retry, cancel, pause and resume" if settings.may_act else "only shows"
    return ok("page", f"{' and '.join(who) or 'shown to nobody'}; it {acts}")


def _who(settings: PageSettings) -> list[tuple[str, bool]]:
    return [("asks for a password", bool(settings.password_hash)), ("is for listed addresses", bool(settings.allow))]
