"""Soak: hours of everyday work under real cron, with a fault each minute; does anything grow, stick or get lost?

    python -m tests.faults.soak [--hours 2] [--seed N] [--on mysql] [--folder dist/soak]

All databases work at the same time, each for the whole time. Each has a process namespace of its own, in which /tmp
and cron are private, and everything but cron runs as nobody. The queue begins with tables of the last release.

Each half minute one line of JSON goes to FOLDER/KIND.jsonl: memory, connections, open files, files and tables, rows.
At the end the judge looks at their growth in the second half, and the checks of chaos at all tasks.

    tasks, judge ← place ← load, faults, watch ← play ← __main__
"""
