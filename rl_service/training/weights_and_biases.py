"""Weights & Biases: never a prompt, never a hang.

Without an API key, or if the server cannot be reached, the run is kept in `<run>/wandb` and can
be uploaded later (`wandb sync`). Waiting is bounded at the start and at the end.
"""

from __future__ import annotations

import logging
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import rl_service
from rl_service.common.files import write_atomic
from rl_service.common.metrics import json_row
from rl_service.policies.policy_versions import PolicyVersion
from rl_service.training.run import Run
from rl_service.training.tracking import Notify, RunStatus

# Its telemetry waits 20 s for an unreachable server when the process ends. Read at import.
os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
import wandb

_INIT_TIMEOUT_S = 30.0
_FINISH_TIMEOUT_S = 60.0
_SOURCE_PACKAGES = ("rl_service", "custom_models", "tune_configs")

logger = logging.getLogger(__name__)


class WandbTracker:
    """One W&B run; a resumed run continues the same one, whose id the run folder keeps."""

    def __init__(self, run: Run, project: str, entity: str | None, notify: Notify) -> None:
        self._run = _start(run, project, entity, notify)
        self._save_code(project)

    def log(self, row: Mapping[str, Any], step: int) -> None:
        """Adds numbers; W&B leaves out steps that it has already, as after a resume."""
        known = {key: value for key, value in json_row(row).items() if value is not None}
        self._run.log(known, step=step)

    def log_policy(self, bundle: Path, version: PolicyVersion) -> None:
        """Adds the bundle as an artifact; its aliases are those that it has now."""
        metadata = {key: value for key, value in version._asdict().items() if key != "aliases"}
        artifact = wandb.Artifact(version.name, type="model", metadata=metadata)
        artifact.add_dir(str(bundle))
        self._run.log_artifact(artifact, aliases=list(version.aliases))

    def finish(self, status: RunStatus) -> None:
        """Uploads what is left, for a minute at most."""
        self._run.summary.update({"status": status})
        self._run.finish(exit_code=1 if status == "failed" else 0)

    def _save_code(self, project: str) -> None:
        root = Path(rl_service.__file__).parents[1]
        for package in _SOURCE_PACKAGES:  # not their common root, which may be site-packages
            self._run.log_code(
                str(root / package), name=f"source-{project}-{package}", include_fn=_is_source
            )


def _start(run: Run, project: str, entity: str | None, notify: Notify) -> wandb.Run:
    """Starts the W&B run, offline if the server cannot be reached, and says where it is kept."""
    mode = os.environ.get("WANDB_MODE") or ("online" if has_api_key() else "offline")
    try:
        started = _init(run, project, entity, mode)
    except Exception as error:
        if mode != "online":
            raise
        logger.warning("Weights & Biases cannot be reached", exc_info=True)
        notify(f"Weights & Biases cannot be reached ({_first_line(error)})")
        wandb.teardown(exit_code=1)  # it still holds the id of the run that failed to start
        started = _init(run, project, entity, "offline")
    if started.offline:
        folders = run.path / "wandb" / "offline-run-*"
        notify(f"Weights & Biases run kept offline; to upload: wandb sync {folders}")
    elif started.url:
        notify(f"Weights & Biases run: {started.url}")
    return started


def _is_source(path: str, root: str) -> bool:
    return path.endswith((".py", ".yaml"))


def _init(run: Run, project: str, entity: str | None, mode: str) -> wandb.Run:
    return wandb.init(
        project=project,
        entity=entity,
        id=_run_id(run),
        name=run.run_id,
        group=run.path.parent.name,
        config=run.settings.model_dump(mode="json"),
        dir=str(run.path),
        resume="allow",
        mode=mode,  # type: ignore[arg-type]  # may come from WANDB_MODE; wandb checks it
        settings=wandb.Settings(
            reinit="create_new",  # a tuning experiment's trials are runs side by side
            init_timeout=_INIT_TIMEOUT_S,
            finish_timeout=_FINISH_TIMEOUT_S,
            console="off",  # it would take over the streams that the run's log already takes
            silent=True,
        ),
    )


def _run_id(run: Run) -> str:
    """The W&B id of a run; kept in a file, so that it outlives a rename of the folder."""
    path = run.path / "wandb_run_id.txt"
    if not path.exists():
        write_atomic(path, run.run_id)
    return path.read_text(encoding="utf-8")


def has_api_key() -> bool:
    """Whether W&B would find a key without asking: in the environment or in ~/.netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
