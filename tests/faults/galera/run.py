"""A storm from its begin to its report: faults for so many seconds, then a drain, then the checks."""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from tests.faults.chaos.checks import Evidence, check_all
from tests.faults.chaos.faults import KILLS
from tests.faults.chaos.run import Report, play, report_on
from tests.faults.galera.faults import CLUSTER
from tests.faults.galera.stage import TICK_NUMBER, Balancer, GaleraStage

WORKER_FAULTS = {kind: KILLS[kind] for kind in ("kill", "terminate")}


def run_storm(seconds: float, seed: int, folder: Path) -> Report:
    with closing(GaleraStage(folder, seed)) as stage:
        balancer = Balancer(stage, seed)
        balancer.start()
        try:
            evidence = play(stage, [WORKER_FAULTS, CLUSTER], seconds, seed)
        finally:
            balancer.end()
        evidence.strikes = [*evidence.strikes, *balancer.moves]
        evidence.faults = [*evidence.faults, "move"]
        failures = [*check_all(evidence), *check_cluster(evidence, stage)]
    report = report_on("galera", seed, seconds, evidence, failures)
    nodes = sum(strike.kind in CLUSTER for strike in evidence.strikes)
    return report._replace(heading=f"{report.heading}; {nodes} faults of nodes")


def check_cluster(evidence: Evidence, stage: GaleraStage) -> Iterator[str]:
    """The nodes agree, and the schedule added one task after the other."""
    first, *others = stage.contents()
    yield from (f"a node holds {other}, and the first one {first}" for other in others if other != first)
    ticks = evidence.runs_of[TICK_NUMBER]
    if not any(tick.outcome == "done" for tick in ticks):
        yield "the schedule never ran"
    for tick, later in pairwise(ticks):
        if later.began < evidence.end_of(tick):
            yield f"two tasks of the schedule ran at once: {tick} {later}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 1 if a promise failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.galera")
    parser.add_argument("--seconds", type=float, default=480.0, help="of faults (default 480)")
    parser.add_argument("--seed", type=int, help="replays an order of faults; default: a new one")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as temporary:
        report = run_storm(options.seconds, seed, Path(temporary))
    print(report, flush=True)
    return min(len(report.failures), 1)
