"""TASKSERVER_LOG_FORMAT=json: one JSON object a line."""

from __future__ import annotations

import json
import logging
import time

from ...messages.error_text import MAX_LOGGED_LENGTH
from ...messages.log_records import FULL_TEXT
from ...messages.printable import without_middle
from .log_lines import level_name

_encode = json.JSONEncoder().encode
"""Taken once: a module may replace `json.dumps`."""
FIELDS_OF_TASK = ("task_id", "task", "attempt", "error", "is_fatal")


class JsonFormat(logging.Formatter):
    """Writes a record as JSON in ASCII: no text in it can end the line, or command a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": level_name(record).lower(),
            "logger": record.name,
            "pid": record.process,
            "message": without_middle(record.getMessage(), MAX_LOGGED_LENGTH),
        }
        fields |= {name: _plain(getattr(record, name)) for name in FIELDS_OF_TASK if hasattr(record, name)}
        if full_text := getattr(record, FULL_TEXT, ""):
            fields["traceback"] = _plain(full_text)
        return _encode(fields)


def _plain(value: object) -> str | int:
    """A field as text, number or truth value, or the type of whatever else a task hands to our logger as a field."""
    return value if isinstance(value, (str, int)) and type(value) in (str, int, bool) else f"<{type(value).__name__}>"
