"""The benchmarks: `python -m bench` prints ratios of taskserver to bare drivers."""
