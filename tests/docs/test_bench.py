"""The benchmarks still run: they take the program's own statements apart, which no other test would notice."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.deployment import ROOT


@pytest.mark.long
def test_every_benchmark_runs_with_few_rows() -> None:
    subprocess.run([sys.executable, "-m", "bench", "--quick"], cwd=ROOT, check=True, timeout=600)
