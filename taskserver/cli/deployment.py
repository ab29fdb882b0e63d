"""Which deployment a command is for: by `--folder` and `--env`, else by the folder in which the program looks."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..errors import SettingError

_ABOUT_FOLDER = "the deployment's folder: its .env, its modules, its var/"
_ABOUT_ENV = "settings from FILE, whose folder counts unless --folder is given"
_ABOUT_VERSION = "tell the version, and end"
ABOUT = f"""
  --folder DIR  {_ABOUT_FOLDER}
  --env FILE    {_ABOUT_ENV}
  --version     {_ABOUT_VERSION}"""


class Deployment(NamedTuple):
    """A deployment's folder, and the file of its settings."""

    folder: Path
    env_file: Path | None = None
    """None: the `.env` in the folder."""


def deployment_of(usual: Path, folder: str | None, env_file: str | None) -> Deployment:
    """The deployment that the options name; `usual` is its folder without them. Raises SettingError."""
    for option, given in (("--folder", folder), ("--env", env_file)):
        if given == "":
            raise SettingError(f"{option} is empty; allowed: a path")
    file = None if env_file is None else Path(env_file).absolute()
    place = Path(folder).absolute() if folder is not None else usual if file is None else file.parent
    if not place.is_dir():
        raise SettingError(f"{place} is no folder that this user can see; allowed: the folder of a deployment")
    return Deployment(place, file)


def settings_in_words(folder: Path, env_file: Path | None) -> str:
    """Where a deployment's settings come from, and where it lies."""
    file = env_file or folder / ".env"
    return f"the deployment in {folder}, with the settings {f'of {file}' if file.exists() else 'of the environment'}"


def add_options(parser: Any) -> None:
    """Add the options that name a deployment, and the one that tells the version."""
    parser.add_argument("--folder", metavar="DIR", help=_ABOUT_FOLDER)
    parser.add_argument("--env", dest="env_file", metavar="FILE", help=_ABOUT_ENV)
    parser.add_argument("--version", action="version", version=f"taskserver {__version__}", help=_ABOUT_VERSION)


def add_options_of_command(parser: Any) -> None:
    """Let the options that name a deployment stand behind a command, too."""
    from argparse import SUPPRESS  # a plain line of a crontab does not need it

    parser.add_argument("--folder", default=SUPPRESS, help=SUPPRESS)
    parser.add_argument("--env", dest="env_file", default=SUPPRESS, help=SUPPRESS)
