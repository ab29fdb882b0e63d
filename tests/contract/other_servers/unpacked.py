"""What was unpacked of a server's packages: its files, and how its programs are run by their own loader."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.contract.other_servers.fetch import NotHad


@dataclass(frozen=True)
class Unpacked:
    folder: Path

    def find(self, *patterns: str) -> Path:
        """The first file like that."""
        for pattern in patterns:
            for path in sorted(self.folder.rglob(pattern)):
                if path.is_file() and not path.is_symlink():
                    return path
        raise NotHad(f"its packages have no {patterns[0]}")

    def command(self, program: Path) -> list[str]:
        """Runs a program by its own loader and C library: a link to the loader would lead out of the folder."""
        libraries = [path.parent for path in self.folder.rglob("libc.so.6")]
        folders = [folder for library in libraries for folder in self._library_folders(library.name)]
        loader = self.find("ld-linux-*.so.*", "ld-2.*.so")
        return [str(loader), "--library-path", ":".join(map(str, folders)), str(program)]

    def wrap(self, program: Path) -> None:
        """Puts a script in a program's place that runs it so, for programs that start each other."""
        real = program.rename(program.with_name(f"{program.name}.real"))
        program.write_text(f'#!/bin/sh\nexec {shlex.join(self.command(real))} "$@"\n')
        program.chmod(0o755)

    def _library_folders(self, triplet: str) -> list[Path]:
        """lib/x86_64-linux-gnu and usr/lib/x86_64-linux-gnu: older suites have both."""
        return [path for path in self.folder.rglob(triplet) if path.is_dir() and path.parent.name == "lib"]
