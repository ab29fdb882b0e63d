"""The settings of the status page: who may see it, act on it, read its metrics, and add tasks over HTTP.

Workers do not read them: a mistake here must stop only the page.
"""

from __future__ import annotations

import os
import re
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import NamedTuple

from ..errors import SettingError
from ..messages.programs import CLIENT
from ..messages.text import read_number, shown
from ..model.checks import is_whole
from ..model.task import MAX_GROUP_ID
from .load import found_settings
from .table import Parser, Setting, fields_of, one_of

Network = IPv4Network | IPv6Network
SOCKET = IPv6Network("::/128")
"""Stands for a Unix socket, which has no address."""

_PASSWORD = r"pbkdf2:sha256:[1-9][0-9]{0,7}\$[^$\s]+\$[0-9a-f]{64}"
_SHA256 = r"[0-9a-f]{64}"
TOKEN_NAME = r"[A-Za-z0-9_.-]{1,60}"
_TOKEN = (
    rf"(?P<name>{TOKEN_NAME});sha256=(?P<sha256>{_SHA256});"
    r"tasks=(?P<tasks>[^\s;]+);groups=(?P<groups>[^\s;]+)"
)
_TASK = r"\*|[\w.:]+(\.\*)?"


class AddToken(NamedTuple):
    """Who may add tasks over HTTP, and which."""

    name: str
    sha256: str
    """Of the token, in hexadecimal."""
    tasks: tuple[str, ...]
    """Names of callables, `module.*` for a whole module, or `*`."""
    groups: tuple[int, ...] | None
    """None: every group."""

    def allows_task(self, task: str) -> bool:
        return any(
            one in ("*", task) or (one.endswith(".*") and task.startswith((one[:-1], f"{one[:-2]}:")))
            for one in self.tasks
        )

    def allows_group(self, group_id: int) -> bool:
        return self.groups is None or group_id in self.groups


class PageSettings(NamedTuple):
    """The settings of the page, parsed."""

    password_hash: str = ""
    """Empty: no password."""
    allow: tuple[Network, ...] = ()
    """The networks that may see the page; empty: all."""
    proxies: tuple[Network, ...] = ()
    """Proxies that are trusted about a visitor's address and https."""
    hosts: tuple[str, ...] = ()
    """Host names that need no password and no https."""
    may_act: bool = False
    metrics_sha256: str = ""
    """Of the token for the metrics; empty: no metrics."""
    add_tokens: tuple[AddToken, ...] = ()

    @property
    def is_enabled(self) -> bool:
        """Whether anyone may see the page."""
        return bool(self.password_hash or self.allow)


def load_page_settings(folder: Path, env_file: Path | None = None) -> PageSettings:
    """Read and check the page's settings. Raises SettingError, which repeats no hash."""
    settings = PageSettings(**fields_of(PAGE_SETTINGS, found_settings(folder, os.environ, env_file)))
    if settings.may_act and not settings.password_hash:
        raise SettingError("TASKSERVER_PAGE_ACTIONS is yes without TASKSERVER_PAGE_PASSWORD: set both, or neither")
    return settings


def _secret(pattern: str, what: str, printed_by: str) -> Parser:
    """Takes a hash, which no error repeats."""

    def parse(key: str, value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise SettingError(f"{key} is not a hash of a {what}; allowed: what {CLIENT} page {printed_by}")
        return value

    return parse


def _networks(**words: Network) -> Parser:
    """Takes addresses and networks with commas or blanks between them; `words` stand for others."""

    def parse(key: str, value: str) -> tuple[Network, ...]:
        networks = []
        for part in filter(None, re.split(r"[,\s]+", value)):
            try:
                networks.append(words.get(part) or ip_network(part, strict=False))
            except ValueError:
                also = "".join(f", or {word}" for word in words)
                raise SettingError(
                    f"{key} is wrong: {shown(part)}; allowed: addresses and networks with commas between them, "
                    f"such as 203.0.113.7, 2001:db8::/32{also}"
                ) from None
        return tuple(networks)

    return parse


def _tokens(key: str, value: str) -> tuple[AddToken, ...]:
    tokens = []
    for number, part in enumerate(value.split(), start=1):
        found = re.fullmatch(_TOKEN, part)
        tasks = found["tasks"].split(",") if found else []
        written = found["groups"].split(",") if found and found["groups"] != "*" else []
        groups = [group for group in map(read_number, written) if is_whole(group, 0, MAX_GROUP_ID)]
        if not found or not all(re.fullmatch(_TASK, task) for task in tasks) or len(groups) < len(written):
            raise SettingError(
                f"{key} is wrong in entry {number}; allowed: entries with blanks between them, each as "
                "name;sha256=…;tasks=tasks.send_letter,shop.*;groups=3,5 (groups=* for all), "
                f"as {CLIENT} page --token NAME prints them"
            )
        tokens.append(AddToken(found["name"], found["sha256"], tuple(tasks), tuple(groups) or None))
    return tuple(tokens)


_yes_or_no = one_of(("no", "yes"))

PAGE_SETTINGS = (
    Setting("page_password", "password_hash", _secret(_PASSWORD, "password", "--password prints, in single quotes")),
    Setting("page_allow", "allow", _networks()),
    Setting("page_proxies", "proxies", _networks(unix=SOCKET)),
    Setting("page_hosts", "hosts", lambda key, value: tuple(value.replace(",", " ").lower().split())),
    Setting("page_actions", "may_act", lambda key, value: _yes_or_no(key, value) == "yes"),
    Setting("metrics_token", "metrics_sha256", _secret(_SHA256, "token", "--token prints")),
    Setting("add_tokens", "add_tokens", _tokens),
)
