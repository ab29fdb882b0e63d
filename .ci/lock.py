"""`make update`: writes requirements.lock, the newest packages that pyproject.toml allows, each with its hashes.

It is for every Python and platform that we support, and names no registry: uv's own settings choose one
(UV_DEFAULT_INDEX). For the packages inside the bundle it also holds the hash of what the bundle takes from them, since
an installed package no longer tells the hash of the file that it came in. Of these packages it names one release, since
a bundle is for every Python: the newest that the oldest Python can use.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "packaging"), str(ROOT / ".ci")]

from bundle import content_line, fetched  # type: ignore[import-not-found]  # noqa: E402
from requirements import RUN_TIME, WEB  # noqa: E402

HEAD = """\
# What `make` installs and `make bundle` packs, with hashes: pip refuses a file that has another one. Written by
# `make update`; a section has what an extra of pyproject.toml needs beyond the sections before it.
"""
PACKED = ("cron", WEB, "metrics", "postgresql")
"""Besides those of the run time, the extras whose packages the bundle can take in."""
NOT_PACKED = ("psycopg-binary", "tzdata")
"""But not these: a compiled form that runs on some machines only, and what is for Windows alone."""
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
            packable = [entry for entry in entries if not entry.startswith(tuple(f"{name}==" for name in NOT_PACKED))]
            notes = content_lines(packable, Path(folder, title)) if title in (RUN_TIME, *PACKED) else []
            parts.append("\n".join([f"# ---- {title}", *notes, *entries]) + "\n")
    (ROOT / "requirements.lock").write_text("\n".join(parts), encoding="utf-8")
    print("requirements.lock:", ", ".join(sorted(entry.split()[0] for entry in listed)))


def compiled(extras: tuple[str, ...], *options: str) -> list[str]:
    """An entry for each package, over several lines: its version, where it is needed, its hashes."""
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "pyproject.toml", *options]
    command += ["--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"]
    command += ["--no-annotate", "--no-header", "--quiet", *(f"--extra={extra}" for extra in extras)]
    text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return re.split(r"\n(?=\S)", text.strip())


def content_lines(entries: list[str], folder: Path) -> list[str]:
    """A comment for each package on what the bundle takes from it, of the very files that the hashes name."""
    folder.mkdir()
    return sorted(map(content_line, fetched(entries, folder)))


if __name__ == "__main__":
    main()
