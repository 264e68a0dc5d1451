"""One JSON object a line: what happened, to which request, how long it took."""

from __future__ import annotations

import json
import logging
from logging.handlers import MemoryHandler, RotatingFileHandler
from pathlib import Path

LOGGER = "rl_service.serving"
_BUFFERED_LINES = 200
_FILE_BYTES, _KEPT_FILES = 64 * 2**20, 4
"""A busy service writes this much in an hour; older lines go."""


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_to(path: Path) -> MemoryHandler:
    """Sends the service's events to a file, a few hundred lines at once; `flush` writes the rest.

    Warnings go to standard error as well, and are written at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = RotatingFileHandler(
        path, maxBytes=_FILE_BYTES, backupCount=_KEPT_FILES, encoding="utf-8", delay=True
    )
    file.setFormatter(_JsonLines())
    buffer = MemoryHandler(_BUFFERED_LINES, flushLevel=logging.WARNING, target=file)
    shown = logging.StreamHandler()
    shown.setLevel(logging.WARNING)
    shown.setFormatter(_JsonLines())
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.handlers = [buffer, shown]
    return buffer
