"""Checks that are the same for servers of all kinds."""

from __future__ import annotations

from collections.abc import Sequence

from .findings import CheckResult, broken, ok, warning

FEW_CONNECTIONS = 5
MIN_WAIT_SECONDS = 20
MAX_TRANSACTION_SECONDS = 300
MAX_CLOCK_DIFFERENCE_SECONDS = 60


def check_encrypted(found: str, is_safe: bool, option: str) -> CheckResult:
    """Whether nobody between the hosts can listen in; `option` of the DSN asks for TLS."""
    if is_safe:
        return ok("connection", found)
    return warning(
        "connection",
        found,
        "whoever is on the way between the hosts can read tasks and their arguments",
        f"add ?{option} to TASKSERVER_DSN; where the server has no TLS, ask the host for it",
    )


def check_rights(denied: Sequence[str], spared: Sequence[str]) -> CheckResult:
    """Whether the account has a worker's rights; `spared` ones this worker does without."""
    if denied:
        return broken(
            "rights",
            f"this account may not {', '.join(denied)}",
            "workers cannot do their work without that",
            "grant it in the host's panel, or as docs/security.md says",
        )
    but = f", but not {', '.join(spared)}" if spared else ""
    return ok("rights", f"this account may do all that a worker does{but}")


def check_clock(ahead: float, in_sql: str) -> CheckResult:
    """Whether the server's clock is this host's, give or take a minute; `in_sql` is an instant by the server's."""
    if abs(ahead) <= MAX_CLOCK_DIFFERENCE_SECONDS:
        return ok("clock", f"the server's clock and this host's are {abs(ahead):.1f} s apart")
    return warning(
        "clock",
        f"the server's clock is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} this host's",
        "the queue goes by the server's clock alone, but what PHP or a task takes for now is another time",
        f"write due dates in SQL, as {in_sql}, and ask your host to set its clocks",
    )


def check_idle(seconds: float) -> CheckResult:
    """How long the server bears a connection that is idle."""
    found = f"the server drops connections that are idle for {seconds:g} s"
    if seconds >= MIN_WAIT_SECONDS:
        return ok("wait_timeout", f"{found}; workers connect again")
    return warning(
        "wait_timeout",
        found,
        "workers connect again each time, which costs, and a page of yours may not",
        "connect in pages right before the INSERT, and ask the host for 60 s or more",
    )


def check_account_limit(limit: int) -> CheckResult:
    """How many connections the account may have at once."""
    found = f"at most {limit} for this account"
    if limit > FEW_CONNECTIONS:
        return ok("connections", f"{found}; a worker uses one")
    return warning(
        "connections",
        found,
        "a worker uses one, and web pages need the rest: who finds none gets an error",
        "start workers with --slots 1, and ask the host for more",
    )


def read_only(found: str) -> CheckResult:
    """The transactions of this account begin as read-only ones."""
    return warning(
        "session_defaults",
        found,
        "no transaction may write: tasks can neither be added nor run",
        "wait for the end of its maintenance, or ask the host",
    )
