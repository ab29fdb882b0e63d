"""A folder for what a deployment writes: for its owner alone, and closed to a web server that reaches it."""

from __future__ import annotations

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
    """Make it where it is missing; one that stands is left as it is. Raises OSError."""
    if not path.is_dir():
        path.mkdir(mode=0o700, parents=True, exist_ok=True)  # another may make it just now
        close_to_others(path)


def close_to_others(path: Path) -> None:
    """Make a folder of our own private, as it may have been uploaded with any rights. Raises OSError."""
    path.chmod(0o700)
    if not (path / ".htaccess").exists():
        (path / ".htaccess").write_text(DENY_ALL)
