"""The command: python -m tests.faults.chaos; its options are told by --help and in __init__.py."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.faults.chaos.run import run_chaos
from tests.faults.chaos.schedule import FAULTS


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.chaos", description="Faults, and what the queue makes of them."
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of faults (default 120)")
    parser.add_argument("--seed", type=int, help="replays a schedule; default: a new one")
    parser.add_argument("--dsn-kind", choices=sorted(FAULTS), help="default: one after the other")
    parser.add_argument("--keep", type=Path, help="leave the deployments in this folder")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    failed = False
    for dsn_kind in [options.dsn_kind] if options.dsn_kind else sorted(FAULTS):
        print(f"chaos on {dsn_kind}: seed {seed}", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(options.keep or temporary) / f"{dsn_kind}-{seed}"
            folder.mkdir(parents=True)
            report = run_chaos(dsn_kind, options.seconds, seed, folder)
        print(report, flush=True)
        failed = failed or bool(report.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
