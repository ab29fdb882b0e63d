"""Starts a soak run on each database, in namespaces, and shows what they found."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.cron import NAMESPACES, START, has_namespaces, prepare
from tests.support.databases import DATABASES
from tests.support.deployment import ROOT
from tests.support.servers import NOBODY, PROGRAM_FOLDERS, find_program

# /tmp is small enough to be filled. sh waits for all orphans: here it is process 1.
PLAY = f"""
mkdir /run/soak /run/repository
mount --bind "$1" /run/soak
mount --bind '{ROOT}' /run/repository
mount -t tmpfs -o size=1200m,mode=1777 tmpfs /tmp
cron
cd /run/repository
code=0
setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups .venv/bin/python -m tests.faults.soak.play "$@" || code=$?
exit $code
"""
HEADING = f"{'':16}{'first':>10}{'last':>10}{'most':>10}  added by the second half, and tolerated"


class Outcome(NamedTuple):
    """What a run on one database said."""

    dsn_kind: str
    report: Mapping[str, Any]

    @property
    def failures(self) -> list[str]:
        return [*self.report.get("failures", ["it ended without a report"])]

    def __str__(self) -> str:
        lines = [f"soak on {self.dsn_kind}: {len(self.failures) or 'no'} failures", HEADING]
        lines += self.report.get("growth", [])
        lines += [f"  {name}: {found}" for name, found in self.report.get("counts", {}).items()]
        return "\n".join([*lines, *(failure[:3000] for failure in self.failures[:20])])


def run_soak(kinds: Sequence[str], seconds: float, seed: int, folder: Path) -> list[Outcome]:
    """On all of them at the same time. Their lines of JSON, logs and mails are in the folder. Needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder, Path("/run/soak/mails"))
    env = {"PATH": PROGRAM_FOLDERS, "LANG": "C.UTF-8"}
    running = []
    for kind in kinds:
        shutil.rmtree(folder / kind, ignore_errors=True)
        (folder / kind).mkdir()
        (folder / kind).chmod(0o777)
        command = [*NAMESPACES, "sh", "-c", START + PLAY, "sh", kind, str(seconds), str(seed)]
        with open(folder / f"{kind}.jsonl", "wb") as output:
            running.append(subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output))
    for process in running:
        process.wait()
    lines = {kind: (folder / f"{kind}.jsonl").read_text().splitlines() for kind in kinds}
    return [Outcome(kind, json.loads(found[-1]) if found else {}) for kind, found in lines.items()]


def why_not() -> str | None:
    """Why it cannot run here."""
    if not has_namespaces() or not find_program("cron"):
        return "a private cron needs root, namespaces of its own, and cron"
    python = str(Path(sys.executable).resolve())
    # By a shell: setpriv still has root's power when it starts a program.
    as_nobody = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", "sh", "-c", '"$0" -c ""', python]
    if subprocess.run(as_nobody, capture_output=True).returncode != 0:
        return f"nobody may not run {python}: set TASKSERVER_PYTHON to one outside of root's home, and delete .venv"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 1 if something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak")
    parser.add_argument("--hours", type=float, default=2.0, help="of faults, on all databases at once (default 2)")
    parser.add_argument("--seed", type=int, help="replays the orders of faults and tasks; default: a new one")
    parser.add_argument("--on", choices=DATABASES, help="default: all")
    parser.add_argument("--folder", type=Path, default=ROOT / "dist" / "soak", help="for samples and logs (dist/soak)")
    options = parser.parse_args(arguments)
    if words := why_not():
        print(words, file=sys.stderr)
        return 2
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    print(f"seed {seed}, {options.hours:g} hours, samples in {options.folder}", flush=True)
    outcomes = run_soak([options.on] if options.on else DATABASES, options.hours * 3600, seed, options.folder)
    print(*outcomes, sep="\n\n")
    return int(any(outcome.failures for outcome in outcomes))
