"""Proves that the tests notice when a promise is broken. `python -m tests.mutations` runs it."""
