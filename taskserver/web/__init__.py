"""The status page on the web: a WSGI application.

`taskserver.web:application` serves the deployment in the folder that holds this package and worker.py, or, where
the package lies elsewhere, the current folder. `application_of(folder)` serves any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["application", "application_of"]

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
PACKAGES = ("werkzeug", "jinja2", "markupsafe", "itsdangerous")


def application_of(folder: str | Path) -> Application:
    """The page of the deployment in a folder, whose `.env` has the settings.

    Where a package of the page is missing, each answer says so: an owner without a shell sees nothing else.
    """
    try:
        from .wsgi import Application as Page
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES:
            raise
        return _without(package)
    return Page(Path(folder).absolute())


def _without(package: str) -> Application:
    text = (
        f"The package {package} is missing, which the page needs: upload the bundle that was made with --web, or "
        "pip install 'Werkzeug>=3.1,<4' 'Jinja2>=3.1,<4' 'itsdangerous>=2.2,<3' for the Python of this page.\n"
    ).encode()

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("503 Service Unavailable", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text]

    return application


def _own_folder() -> Path:
    folder = Path(__file__).resolve().parent.parent.parent
    return folder if (folder / "worker.py").exists() else Path.cwd()


application = application_of(_own_folder())
