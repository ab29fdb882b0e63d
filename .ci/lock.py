"""`make update`: writes requirements.lock, the newest packages that pyproject.toml allows, each with its hashes.

It is for every Python and platform that we support, and names no registry: uv's own settings choose one
(UV_DEFAULT_INDEX). Of the packages inside the bundle it names one release, since a bundle is for every Python: the
newest that the oldest Python can use.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / ".ci")]

from requirements import RUN_TIME, WEB  # noqa: E402

HEAD = """\
# What `make` installs and `make bundle` packs, with hashes: pip refuses a file that has another one. Written by
# `make update`; a section has what an extra of pyproject.toml needs beyond the sections before it.
"""
PACKED = ("cron", WEB, "metrics", "postgresql")
"""Besides those of the run time, the extras whose packages the bundle can take in."""
EXTRAS = (*PACKED, "test", "dev", "update", "bench", "release")
OLDEST_PYTHON = "3.10"


def main() -> None:
    """Write the file, and say which packages it names."""
    with tempfile.TemporaryDirectory() as folder:
        packed, pins = Path(folder, "packed"), Path(folder, "pins")
        packed.write_text("\n".join(compiled(PACKED, "--fork-strategy", "fewest")))
        pins.write_text("\n".join(compiled(EXTRAS, "--constraint", str(packed))))
        parts, listed = [HEAD], set[str]()
        for number, title in enumerate((RUN_TIME, *EXTRAS)):
            entries = [entry for entry in compiled(EXTRAS[:number], "--constraint", str(pins)) if entry not in listed]
            listed.update(entries)
            parts.append("\n".join([f"# ---- {title}", *entries]) + "\n")
    (ROOT / "requirements.lock").write_text("\n".join(parts), encoding="utf-8")
    print("requirements.lock:", ", ".join(sorted(entry.split()[0] for entry in listed)))


def compiled(extras: tuple[str, ...], *options: str) -> list[str]:
    """An entry for each package, over several lines: its version, where it is needed, its hashes."""
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "pyproject.toml", *options]
    command += ["--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"]
    command += ["--no-annotate", "--no-header", "--quiet", *(f"--extra={extra}" for extra in extras)]
    text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return re.split(r"\n(?=\S)", text.strip())


if __name__ == "__main__":
    main()
