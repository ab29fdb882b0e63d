"""Prints what taskserver requires, one a line: requirements.txt, then the named extras of pyproject.toml.

`pip install -e .[test]` would do the same and also put an import hook into .venv, which every start of
worker.py would pay for; and the benchmarks measure that start.
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10 has no TOML reader of its own; pip brings one
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent


def requirements(extras: list[str]) -> list[str]:
    """Requirement lines for these extras; their mentions of taskserver itself are left out."""
    run_time = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = run_time + [line for extra in extras for line in project["optional-dependencies"][extra]]
    return [line for line in lines if line and not line.startswith(("#", "taskserver"))]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))
