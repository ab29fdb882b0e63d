"""The status page, as one file and as a WSGI application.

`taskserver.web:application` serves the deployment in the folder with this package and worker.py, else in the current
folder. `application_of(folder)` serves any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["application", "application_of"]

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
PACKAGES = ("werkzeug", "jinja2", "markupsafe", "itsdangerous")
NOT_WHOLE = (
    "The program is incomplete: upload the folder again. The web server's error log and client.py doctor say more.\n"
)
NO_PAGE = "This bundle does not include the page: upload the one made with --web.\n"


def application_of(folder: str | Path) -> Application:
    """The page of the deployment in a folder, whose `.env` has the settings.

    If a package is missing, or an upload was incomplete, each answer shows that: an owner without a shell sees nothing
    else.
    """
    try:
        from .wsgi import Application as Page
    except (ImportError, SyntaxError, NameError, AttributeError) as error:
        if not Path(__file__).with_name("wsgi.py").exists():
            return _closed(NO_PAGE, str(error))
        package = ((isinstance(error, ImportError) and error.name) or "").partition(".")[0]
        return _closed(_without(package) if package in PACKAGES else NOT_WHOLE, f"{type(error).__name__}: {error}")
    return Page(Path(folder).absolute())


def _without(package: str) -> str:
    return (
        f"The package {package} is missing, which the page needs: upload the bundle that was made with --web, or "
        "pip install 'Werkzeug>=3.1,<4' 'Jinja2>=3.1,<4' 'itsdangerous>=2.2,<3' for the Python of this page.\n"
    )


def _closed(text: str, for_log: str) -> Application:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if "wsgi.errors" in environ:
            print(f"taskserver: {for_log}", file=environ["wsgi.errors"])
        start_response("503 Service Unavailable", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text.encode()]

    return application


def _own_folder() -> Path:
    folder = Path(__file__).resolve().parent.parent.parent
    return folder if (folder / "worker.py").exists() else Path.cwd()


def __getattr__(name: str) -> Application:  # lazy, as client.py page imports this package without Werkzeug
    if name != "application":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    application = globals()[name] = application_of(_own_folder())
    return application
