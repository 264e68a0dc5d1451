"""Keeps what the user cannot act on away from the console.

The v4 MuJoCo tasks are chosen on purpose (scores of v4 and v5 do not compare), so gymnasium's
hint that a v5 exists is noise. MuJoCo itself writes its warnings to standard error and to a file
MUJOCO_LOG.TXT in the current folder; ours go to Python's log instead.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def without_version_hints() -> Iterator[None]:
    """Silences gymnasium's hint that an environment has a later version."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
        yield


def log_mujoco_warnings() -> None:
    """Sends MuJoCo's warnings to Python's log, and to no file in the current folder."""
    if importlib.util.find_spec("mujoco") is None:
        return
    import mujoco  # type: ignore[import-untyped]  # slow to load, and only some envs need it

    mujoco.set_mju_user_warning(lambda text: log.info("MuJoCo: %s", text))
