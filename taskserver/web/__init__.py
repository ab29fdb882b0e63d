"""The status page: a WSGI application, and the same page as one file.

`taskserver.web:application` serves the deployment in the folder that holds this package and worker.py, or, where
taskserver is installed by pip, the current folder. `application_of(folder)` serves any other.
"""

from __future__ import annotations

from pathlib import Path

from .application import Application

__all__ = ["application", "application_of"]


def application_of(folder: str | Path) -> Application:
    """The page of the deployment in a folder, whose `.env` has the settings."""
    return Application(Path(folder).absolute())


def _own_folder() -> Path:
    folder = Path(__file__).resolve().parent.parent.parent
    return folder if (folder / "worker.py").exists() else Path.cwd()


application = application_of(_own_folder())
