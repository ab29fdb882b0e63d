"""Which other accounts of this host may change a file: by its owner, its rights, and the folders on the way to it.

An access control list can give further rights; the standard library cannot see one, and nothing is said of them.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOT = 0
MAX_LINKS = 40
"""Links on one way, after which the system itself gives up."""


def trusted_accounts(folder: Path) -> frozenset[int]:
    """Numbers of the accounts that may change a program: root, this one, its folder's owner. Raises OSError."""
    return frozenset({ROOT, os.geteuid(), folder.stat().st_uid})


def who_else(found: os.stat_result, trusted: frozenset[int], only_passed: bool = False) -> str:
    """The others who may change a file or folder, in words; empty for nobody.

    A sticky folder that is `only_passed` on the way to a file lets nobody rename what is not theirs.
    """
    if found.st_uid not in trusted:
        return f"its owner {account_name(found.st_uid)}"
    if stat.S_ISLNK(found.st_mode) or (only_passed and found.st_mode & stat.S_ISVTX):
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "any account"
    if found.st_mode & stat.S_IWGRP and not _has_no_others(found.st_gid, trusted):
        return f"the group {_group_name(found.st_gid)}"
    return ""


def who_else_may_replace(path: Path, folder: Path) -> str:
    """The others who may lay another file, or a link, in the place of a file; empty for nobody. Raises OSError.

    Who may rename a folder on the way can do so, too. Where that is one on the way to the program's `folder`, they may
    replace the program itself, which the doctor tells; a worker that refused to run would not hinder them.
    """
    trusted, to_program = trusted_accounts(folder), set(way_to(folder))
    *way, end = way_to(path)
    nearest = {Path(os.path.realpath(path.parent)), end.parent}
    for step in way:
        if step in nearest or step not in to_program:
            who = who_else(step.lstat(), trusted, only_passed=step not in nearest)
            if who:
                return f"{who} of this host may write {step}"
    return ""


def way_to(path: Path) -> Iterator[Path]:
    """Each folder and link on the way to a path, from / on; last, what it leads to in the end.

    Raises OSError where links lead in a circle.
    """
    here, ahead, links = Path("/"), list(reversed(path.absolute().parts[1:])), 0
    while ahead:
        yield here
        name = ahead.pop()
        here = here.parent if name == ".." else here / name
        if here.is_symlink():
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            yield here
            target = Path(os.readlink(here))
            ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            here = Path("/") if target.is_absolute() else here.parent
    yield here


def account_name(uid: int) -> str:
    """An account's name, or its number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@lru_cache(maxsize=16)  # a host may list thousands of accounts, and a folder hold as many files
def _has_no_others(gid: int, trusted: frozenset[int]) -> bool:
    """Whether nobody but trusted accounts is in a group, as in the private one that many hosts give each account."""
    names = {account_name(uid) for uid in trusted}
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return gid in trusted  # a private group has its account's number
    members = set(group.gr_mem)
    if gid != ROOT:  # accounts of the system itself have root's group as their own
        members.update(account.pw_name for account in pwd.getpwall() if account.pw_gid == gid)
    if members - names:
        return False
    # A host may keep its accounts where they can't be listed: a group that we are in may have others in it, too,
    # unless it is named after one of us.
    return gid == ROOT or group.gr_name in names or gid not in _groups_of(trusted)


def _groups_of(trusted: frozenset[int]) -> set[int]:
    groups = {os.getegid(), *os.getgroups()}
    for uid in trusted:
        try:
            groups.add(pwd.getpwuid(uid).pw_gid)
        except KeyError:
            pass
    return groups
