"""The queue's metrics at `…/metrics`, for whoever knows the token."""

from __future__ import annotations

from werkzeug.wrappers import Request, Response

from ..errors import DatabaseError, SettingError
from ..health.acceptance import read_accepted
from ..health.metrics import CONTENT_TYPE, metrics_when_away, read_metrics
from ..server import TaskServer
from ..settings.page import PageSettings
from .private_files import PrivateFiles
from .tokens import WRONG_A_MINUTE, is_within_pace, knows


def answer(settings: PageSettings, server: TaskServer, files: PrivateFiles, request: Request) -> Response:
    """The metrics as text, or why there are none."""
    if not settings.metrics_sha256:
        return Response("There are no metrics here.\n", 404)
    if not knows(settings.metrics_sha256, request):
        if not is_within_pace(files, "wrong", WRONG_A_MINUTE):
            return Response("Too many wrong tokens.\n", 429, {"Retry-After": "60"})
        return Response("The token is missing or wrong.\n", 401, {"WWW-Authenticate": "Bearer"})
    try:
        try:
            text = read_metrics(server, read_accepted(server.store).by_name)
        except DatabaseError:
            text = metrics_when_away()
    except SettingError as error:  # the package that writes them is missing
        return Response(f"{error}\n", 503)
    return Response(text, content_type=CONTENT_TYPE)
