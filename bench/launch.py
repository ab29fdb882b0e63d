"""Runs one command and writes what it cost on standard error's last line; itself started as `python -I -S launch.py`.

A small process of its own, because Linux counts a parent's memory as its child's peak until the child's exec:
started straight from the benchmark, every command would seem as large as the benchmark. Imports next to nothing.
"""

import os
import sys
import time


def main(command: list[str]) -> int:
    """Start the command, wait for it, report: exit code, wall s, CPU s (user and system), peak memory KB."""
    begun = time.perf_counter()
    pid = os.posix_spawn(command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - begun
    code = os.waitstatus_to_exitcode(status)
    print(f"\n{code} {wall:.6f} {usage.ru_utime + usage.ru_stime:.6f} {usage.ru_maxrss}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
