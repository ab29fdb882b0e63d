"""client.py metrics: prints the queue's metrics for Prometheus, or writes them into a file for node exporter."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ...errors import DatabaseError
from ...health.acceptance import read_accepted
from ...health.metrics import metrics_when_away, read_metrics
from ...host.files import write_atomically
from ...server import TaskServer

MODE = 0o644
"""Node exporter runs as another user."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("metrics", help="what Prometheus reads: tasks, waits, runs, this hour and the last")
    parser.add_argument(
        "--textfile",
        metavar="PATH",
        type=Path,
        help="write them into this file in place of printing them; node exporter reads files whose name ends in .prom",
    )
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    try:
        _give(read_metrics(server, read_accepted(server.store).by_name), options.textfile)
    except DatabaseError:
        # Old numbers would look like a queue at rest; and node exporter's file would be read for ever.
        _give(metrics_when_away(), options.textfile)
        raise


def _give(text: str, path: Path | None) -> None:
    if path is None:
        sys.stdout.write(text)
    else:
        write_atomically(path, text, MODE)
