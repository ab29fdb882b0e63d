"""A soak run on one database, inside its namespaces; one line of JSON on standard output for all that happens."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from email.message import EmailMessage
from itertools import chain
from pathlib import Path

from taskserver import TaskServer
from tests.faults.chaos import checks as of_chaos
from tests.faults.chaos.checks import Evidence
from tests.faults.chaos.faults import Strike
from tests.faults.chaos.run import drain
from tests.faults.chaos.stage import Bystander
from tests.faults.soak import checks
from tests.faults.soak.faults import faults_of, strikes
from tests.faults.soak.judge import growths
from tests.faults.soak.load import TICK_SECONDS, ApiProducer, Pages
from tests.faults.soak.place import PRIVATE, Place
from tests.faults.soak.tasks import TICK
from tests.faults.soak.watch import Watch
from tests.support.cron import read_mails

SHORT_SECONDS = 600.0
"""In a run of at most so long everything goes faster, and not each fault must strike."""
FIRST_RUNS_SECONDS = 65.0
"""Until cron started each line once."""


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def play(dsn_kind: str, seconds: float, seed: int) -> None:
    """Prints samples and faults, and the report last."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        place = Place(dsn_kind, Path(name), seed)
        try:
            _play(place, seconds, seed)
        finally:
            place.close()


def _play(place: Place, seconds: float, seed: int) -> None:
    is_short = seconds <= SHORT_SECONDS
    pages, bystander, watch = Pages(place, seed), Bystander(place), Watch(place)
    producers = [ApiProducer(place, seed, first) for first in range(2)]
    pages.start()
    output = place.upgrade()
    pages.has_upgraded = True
    place.start()
    with TaskServer(place.dsn, folder=place.folder) as queue:
        queue.schedule("tick", "tasks.tick", {"number": TICK}, every=TICK_SECONDS)
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(10.0 if is_short else 30.0):
            say(sample=watch.look())

    watching = threading.Thread(target=look)
    for thread in (*producers, bystander, watching):
        thread.start()
    time.sleep(FIRST_RUNS_SECONDS)
    found = []
    for strike in strikes(place, seed, seconds, (1.0, 3.0) if is_short else (20.0, 70.0)):
        found.append(strike)
        say(fault=strike.kind, seconds=round(strike.ended - strike.began, 1))
    for actor in (*producers, pages):
        actor.end()
    with TaskServer(place.dsn, folder=place.folder) as queue:
        queue.unschedule("tick")
    left = drain(place)
    place.stop()
    bystander.end()
    is_over.set()
    watching.join()
    say(sample=watch.look())
    shutil.copytree(place.folder / "var", PRIVATE / "var")

    added = [*producers[0].added, *producers[1].added, *pages.added]
    evidence = checks.read_evidence(place, added, found, watch.fatal, bystander.delays, left)
    mails = [*read_mails(PRIVATE / "mails")]
    texts = [output, (PRIVATE / "web").read_text(errors="replace"), *(mail.get_content() for mail in mails)]
    growth = [*growths(watch.samples)]
    failures = [
        *(one.fault for one in growth if one.fault),
        *(["connections were left open"] if watch.samples[-1].get("connections") else []),
        *chain.from_iterable(check(evidence) for check in OF_CHAOS),
        *checks.check_delays(evidence, pages.earliest),
        *checks.check_pipelines(evidence, pages.pipelines),
        *checks.check_ticks(evidence, place.uploaded_at),
        *checks.check_mails(mails, 1 + int((seconds + FIRST_RUNS_SECONDS) / 3600)),
        *checks.check_output(texts),
    ]
    if not is_short:
        kinds = {*faults_of(place), "upload"} - {strike.kind for strike in found}
        failures += [*(f"no fault of the kind '{kind}' struck" for kind in kinds), *of_chaos.check_power(evidence)]
    say(failures=failures, growth=[str(one) for one in growth], counts=_counts(evidence, found, mails))


OF_CHAOS = (
    of_chaos.check_ends,
    of_chaos.check_repeats,
    of_chaos.check_overlaps,
    of_chaos.check_money,
    of_chaos.check_keys,
)


def _counts(evidence: Evidence, found: Sequence[Strike], mails: Sequence[EmailMessage]) -> dict[str, Counter[object]]:
    return {
        "faults": Counter(strike.kind for strike in found),
        "added": Counter(one.kind for one in evidence.added),
        "without an answer": Counter(one.kind for one in evidence.added if one.id is None),
        "outcomes": Counter(run.outcome for run in evidence.runs),
        "runs of each task": Counter(map(len, evidence.runs_of.values())),
        "mails": Counter(checks.without_numbers(mail.get_content().partition("\n")[0]) for mail in mails),
    }


if __name__ == "__main__":
    play(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
