"""What mkdocs.yml adds to the site of `make docs`: the navigation, and the files outside of docs/ that it links to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")
"""The file of a link in Markdown."""


def on_config(config: Any) -> None:
    """The navigation is that of docs/README.md; a page README.md stands before those that it links to."""
    config.nav = ["README.md", *(_section(name) if "/" in name else name for name in _links("README.md"))]


def _section(name: str) -> Any:
    if not name.endswith("/README.md"):
        return name
    folder = name.rpartition("/")[0]
    return {folder.capitalize(): [name, *(f"{folder}/{page}" for page in _links(name) if "/" not in page)]}


def _links(name: str) -> list[str]:
    found = LINK.findall((ROOT / "docs" / name).read_text(encoding="utf-8"))
    return list(dict.fromkeys(link for link in found if link.endswith(".md") and not link.startswith("..")))


def on_files(files: Any, config: Any) -> Any:
    """The texts at the top of the repository and the examples come along, as repository/…"""
    for path in [*ROOT.glob("*.md"), ROOT / "LICENSE", *ROOT.glob("examples/**/*.*")]:
        if path.is_file() and "__pycache__" not in path.parts:
            name = f"repository/{path.relative_to(ROOT).as_posix()}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Leads links to where those files are in the site."""
    here = page.file.src_uri
    source = here.removeprefix("repository/") if here.startswith("repository/") else f"docs/{here}"

    def link(found: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(source), found[1]))
        place = target.removeprefix("docs/") if target.startswith("docs/") else f"repository/{target}"
        return os.path.relpath(place, os.path.dirname(here) or ".")

    return LINK.sub(link, markdown)
