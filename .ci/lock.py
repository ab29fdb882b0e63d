"""`make update`: writes requirements.lock, the newest packages that pyproject.toml allows, for every platform.

Of a package that the bundle takes in it names one release only.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HEAD = """\
# What `make` installs and `make bundle` packs, with hashes: pip refuses a file that has another one. Written by
# `make update`; a section has what an extra of pyproject.toml needs beyond the sections until test.
"""
PACKED = ("cron", "web", "metrics", "postgresql")
CHAIN, OTHERS = (*PACKED, "test"), ("dev", "docs", "update", "release")
UV = str(Path(sys.executable).with_name("uv"))
OPTIONS = ("--universal", "--python-version=3.10", "--generate-hashes", "--no-annotate", "--no-header", "--quiet")


def compiled(extras: tuple[str, ...], *options: str) -> list[str]:
    """An entry for each package, over several lines: its version, where it is needed, its hashes."""
    command = [UV, "pip", "compile", "pyproject.toml", *OPTIONS, *options, *(f"--extra={extra}" for extra in extras)]
    return re.split(r"\n(?=\S)", subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())


pins, lock, listed = Path(tempfile.mkdtemp(), "pins"), HEAD, set[str]()
pins.write_text("\n".join(compiled(PACKED, "--fork-strategy=fewest")))
pins.write_text("\n".join(compiled((*CHAIN, *OTHERS), f"--constraint={pins}")))
for number, title in enumerate(("run time", *CHAIN, *OTHERS)):
    extras = (*CHAIN, title) if title in OTHERS else CHAIN[:number]
    entries = [entry for entry in compiled(extras, f"--constraint={pins}") if entry not in listed]
    listed.update(() if title in OTHERS else entries)
    lock += "\n".join([f"\n# ---- {title}", *entries]) + "\n"
Path("requirements.lock").write_text(lock, encoding="utf-8")
