"""Begins an experiment, or finds one to go on with; needs no Ray."""

from __future__ import annotations

import secrets
import tempfile
from datetime import datetime
from pathlib import Path

from rl_service.errors import SettingsError, TuningError
from rl_service.files import as_folder_name
from rl_service.tuning.load import TuningPlan, load_plan
from rl_service.tuning.storage import PLAN_FILE, ExperimentStorage


def new_experiment(plan: TuningPlan, storage: str) -> ExperimentStorage:
    """Makes the folder of a new experiment.

    Raises:
        OutputError: if it cannot be written; nothing is left of it then.
    """
    name = f"{as_folder_name(plan.name)}_{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    experiment = ExperimentStorage.create(storage, name)
    try:
        experiment.write(PLAN_FILE, plan.dump())
    except BaseException:
        experiment.remove()
        raise
    return experiment


def open_experiment(experiment: str) -> tuple[TuningPlan, ExperimentStorage]:
    """An experiment to go on with, and its plan.

    Raises:
        TuningError: if there is none, or its plan cannot be read or does not work here.
    """
    storage = ExperimentStorage.open(experiment)
    with tempfile.TemporaryDirectory(prefix="rl-service-tuning-") as folder:
        copy = Path(folder, PLAN_FILE)
        copy.write_text(storage.read(PLAN_FILE), encoding="utf-8")
        try:
            return load_plan(copy), storage
        except SettingsError as error:
            raise TuningError(
                f"{storage}/{PLAN_FILE} cannot be gone on with here ({error}); mend that, in the "
                f"file or on this machine, or start a new experiment"
            ) from error
