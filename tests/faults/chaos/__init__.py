"""Chaos: workers started as cron starts them, while they are killed, frozen and stopped, their database is killed, and
the network between the two breaks, producers adding all the while. At the end every promise of the queue is checked.

    python -m tests.faults.chaos [--seconds 120] [--seed N] [--dsn-kind mysql|postgresql|sqlite] [--keep FOLDER]

A seed gives the schedule of faults (kinds, instants, lengths, which worker), the mode of each worker, and what each
task does at its nth run: each kind of misbehaviour is among the first tasks that are added. Beside those, tasks with
keys are changed all the while, also as they run, and in the end their newest arguments must have run. What happened is
kept by three witnesses: each run of a task writes to a file of its task's own, triggers keep every change of a row and
its deletion in a table `history`, and the proxies know when a worker could reach the database. All instants are of
time.monotonic(), in seconds.

Imports go one way; what stands in one layer does not know its neighbours:

    settings, spans, tasks ← schedule ← evidence ← begins ← told ← checks, stage ← faults, witnesses, report ← run
    ← __main__
"""
