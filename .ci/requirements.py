"""Prints what is installed into .venv, from requirements.lock: what taskserver needs to run, then the named extras.

`pip install -e .[test]` would do the same without hashes, and also put an import hook into .venv, which every start of
worker.py would pay for; and the benchmarks measure that start.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUN_TIME = "run time"
WEB = "web"


def sections(lock: str) -> dict[str, str]:
    """The lines of each section of a requirements.lock, by its title: "run time", then extras of pyproject.toml."""
    titles_and_lines = re.split(r"^# ---- (.+)\n", lock, flags=re.MULTILINE)[1:]
    return dict(zip(titles_and_lines[::2], titles_and_lines[1::2], strict=True))


def section_lines(titles: list[str]) -> list[str]:
    """The lines of these sections of our requirements.lock."""
    found = sections((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    return [line for title in titles for line in found[title].splitlines()]


def requirements(extras: list[str]) -> list[str]:
    """Requirement lines with their hashes for these extras. Each adds to those before it: `cron web metrics test`."""
    return [line for line in section_lines([RUN_TIME, *extras]) if line and not line.startswith("#")]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
