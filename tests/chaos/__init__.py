"""Chaos: workers started as cron starts them, while they are killed, frozen and stopped, their database is killed, and
the network between the two breaks, producers adding all the while. At the end every promise of the queue is checked.

    python -m tests.chaos [--seconds 120] [--seed N] [--dsn-kind mysql|sqlite] [--keep FOLDER]

A seed gives the schedule of faults (kinds, instants, lengths, which worker) and what each task does at its nth run.
What happened is kept by three witnesses: each run of a task writes to a file of its task's own, a trigger keeps every
change of a row in a table `history`, and the proxies know when a worker could reach the database. All instants are of
time.monotonic(), in seconds.

Imports go one way; what stands in one layer does not know its neighbours:

    settings, spans, tasks ← schedule ← evidence ← checks, stage ← faults, witnesses, report ← run ← __main__
"""
