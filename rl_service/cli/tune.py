"""`rl-service tune`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_service.cli.console import AsJson, reported_if_interrupted
from rl_service.common.errors import SettingsError

if TYPE_CHECKING:  # the commands load what they need, so that help and errors come at once
    from rl_service.common.storage import Storage
    from rl_service.tuning.observer import TuneResult
    from rl_service.tuning.plan import TuningPlan


def tune(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]",
            help="YAML file with a search_space, or the name of a shipped one: tuning/CartPole-v1.",
        ),
    ] = None,
    num_samples: Annotated[
        int | None, typer.Option(min=1, help="Trials; instead of the file's.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Folder or URI that all nodes reach; runs by default."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="EXPERIMENT",
            help="Continue an experiment: its folder, URI, or name under runs/.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Search for better settings; the best policy is registered as `best`."""
    with reported_if_interrupted():
        if resume is None:
            plan, experiment = _new(file, num_samples, storage)
        else:
            plan, experiment = _opened(resume, file, num_samples, storage)
        result = _run(plan, experiment, resume=resume is not None)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
    if result.status == "stopped":
        raise typer.Exit(130)


def _new(
    file: Path | None, num_samples: int | None, storage: str | None
) -> tuple[TuningPlan, Storage]:
    if file is None:
        raise SettingsError(
            "tune needs a file; write one with a search_space or try tuning/CartPole-v1"
        )
    from rl_service.tuning.plan import load_plan, new_experiment
    from rl_service.tuning.storage import DEFAULT_STORAGE

    plan = load_plan(file, num_samples)
    return plan, new_experiment(plan, storage or DEFAULT_STORAGE)


def _opened(
    resume: str, file: Path | None, num_samples: int | None, storage: str | None
) -> tuple[TuningPlan, Storage]:
    if (file, num_samples, storage) != (None, None, None):
        raise SettingsError(
            "--resume takes everything from the experiment, so FILE, --num-samples and --storage "
            "cannot be given; start a new experiment without --resume to change them"
        )
    from rl_service.tuning.plan import open_experiment

    return open_experiment(resume)


def _run(plan: TuningPlan, experiment: Storage, *, resume: bool) -> TuneResult:
    """Tunes with the console to ourselves; what the libraries say goes to the log."""
    from rl_service.training.capture import captured_output
    from rl_service.tuning.storage import LOG_FILE, working_folder

    with (
        working_folder(experiment, LOG_FILE) as folder,
        captured_output(folder / LOG_FILE) as (out, _),
    ):
        from rl_service.cli.tune_display import TuneDisplay
        from rl_service.tuning.experiment import tune_experiment

        try:
            with TuneDisplay(out) as display:
                # Before Ray starts: if the process dies with it, this says where to look.
                display.on_message(f"experiment: {experiment}")
                for note in plan.notes:
                    display.on_message(note)
                return tune_experiment(plan, experiment, display, resume=resume)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"continue from what is saved with rl-service tune --resume {experiment}"
            ) from None
