"""`make update`: writes requirements.lock, the newest packages that pyproject.toml allows, each with its hashes.

It is for every Python and platform that we support, and names no registry: uv's own settings choose one
(UV_DEFAULT_INDEX). For the packages inside the bundle it also holds the hash of what the bundle takes from them, since
an installed package no longer tells the hash of the file that it came in.
"""

import re
import subprocess
import sys
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "packaging"), str(ROOT / ".ci")]

from bundle import content_line  # type: ignore[import-not-found]  # noqa: E402
from requirements import RUN_TIME, WEB  # noqa: E402

HEAD = """\
# What `make` installs and `make bundle` packs, with hashes: pip refuses a file that has another one. Written by
# `make update`; a section has what an extra of pyproject.toml needs beyond the sections before it.
"""
EXTRAS = (WEB, "metrics", "test", "dev", "update", "bench")
PACKED = (RUN_TIME, WEB)
"""The sections whose packages the bundle takes in."""
OLDEST_PYTHON = "3.10"


def main() -> None:
    """Write the file, and say which packages it names."""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "pins")
        pins.write_text("\n".join(compiled(EXTRAS)))
        parts, listed = [HEAD], set[str]()
        for number, title in enumerate((RUN_TIME, *EXTRAS)):
            entries = [entry for entry in compiled(EXTRAS[:number], "--constraint", str(pins)) if entry not in listed]
            listed.update(entries)
            notes = content_lines(entries, Path(folder, title)) if title in PACKED else []
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
    required, site = folder / "required", folder / "site"
    folder.mkdir()
    required.write_text("\n".join(entries))
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "-r", str(required), "-d", str(folder)], check=True)
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    return sorted(map(content_line, metadata.distributions(path=[str(site)])))


if __name__ == "__main__":
    main()
