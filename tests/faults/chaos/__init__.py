"""Chaos: workers are killed, frozen and stopped, the database is killed, and the network between them breaks.

    python -m tests.faults.chaos [--seconds 120] [--seed N] [--dsn-kind mysql|postgresql|sqlite]

Meanwhile producers add tasks of every kind. At the end each promise of the queue is checked. A seed gives the order of
the faults, the modes of the workers, and what producers add. There are two witnesses: each run of a task writes its
begin and its end to a file, and the proxies know when a worker could reach the database. All instants are of
time.monotonic(), in seconds.

    tasks ← stage ← faults, checks ← run ← __main__
"""
