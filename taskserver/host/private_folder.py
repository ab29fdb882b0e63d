"""A folder for the files that a deployment writes: for its owner alone, and closed to web servers."""

from __future__ import annotations

import os
from pathlib import Path

DENY_ALL = """\
<IfModule mod_authz_core.c>
  Require all denied
</IfModule>
<IfModule !mod_authz_core.c>
  Order allow,deny
  Deny from all
</IfModule>
"""


def make_private_folder(path: Path) -> None:
    """Make a private folder where none stands; leave one that stands as it is. Raises OSError."""
    if not path.is_dir():
        for folder in (*reversed(path.absolute().parents), path):
            folder.mkdir(mode=0o700, exist_ok=True)  # another process may make it just now
        close_to_others(path)


def close_to_others(path: Path) -> None:
    """Make a folder private, whatever rights it was uploaded with. Raises OSError."""
    path.chmod(0o700)
    if not (path / ".htaccess").exists():
        descriptor = os.open(path / ".htaccess", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(DENY_ALL)
