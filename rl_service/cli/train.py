"""`rl-service train`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_service.cli.console import AsJson, BaseModel, reported_if_interrupted, short_path
from rl_service.common.errors import SettingsError, TrainingFailedError

if TYPE_CHECKING:  # the commands load what they need, so that help and errors come at once
    from rl_service.config.load import LoadedSettings
    from rl_service.training.observer import TrainResult
    from rl_service.training.run import Run


def train(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "--model-name",
            "-m",
            help="mlp, gpt2_critic or llm_policy; the paper's ppo_ex (PPO) and ppo_gpt (GPT2PPO) "
            "take its Table I.",
        ),
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", "-a", help="ppo, a2c or trpo.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option("--env", "-e", help="A gymnasium id, or module:Class."),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option("--iterations", "--num-epochs", "-ne", help="Iterations of the run."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file with settings, or the name of a shipped one: quickstart."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="GROUP.KEY=VALUE", help="One setting; repeatable."),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Continue a run: its folder, or its id under runs/."),
    ] = None,
    base_model: BaseModel = None,
    output_dir: Annotated[
        str | None,
        typer.Option("--output-dir", "-o", help="Folder for runs/ and checkpoints/."),
    ] = None,
    evaluation_interval: Annotated[
        int | None,
        typer.Option(
            "--val-check-interval",
            "--al-check-interval",
            help="Iterations between evaluations.",
        ),
    ] = None,
    wandb_project: Annotated[
        str | None, typer.Option(help="Track the run in this Weights & Biases project.")
    ] = None,
    wandb_entity: Annotated[str | None, typer.Option(help="Weights & Biases entity.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a policy. Underscores in flags work too (--num_epochs)."""
    flags = {
        "stop.iterations": iterations,
        "seed": seed,
        "tracking.output_dir": output_dir,
        "evaluation.interval": evaluation_interval,
        "tracking.wandb_project": wandb_project,
        "tracking.wandb_entity": wandb_entity,
    }
    names = {"model": model, "algorithm": algorithm, "env": env}
    with reported_if_interrupted():
        if resume is not None:
            _refuse_beside_resume({**names, **flags, "config": config})
            run, loaded = _resumed(resume, iterations, overrides or [], base_model)
        else:
            if base_model is not None:
                raise SettingsError(
                    "--base-model goes with --resume; a new run takes --set model.pretrained=DIR"
                )
            run, loaded = _created(config, names, flags, overrides or [])
        result = _run(loaded, run)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
    if result.status == "stopped":
        raise typer.Exit(130)


def _created(
    config: Path | None,
    names: dict[str, str | None],
    flags: dict[str, Any],
    overrides: list[str],
) -> tuple[Run, LoadedSettings]:
    """A new run; what is wrong with `--env` is reported with what is wrong elsewhere."""
    from rl_service.config.load import load_settings
    from rl_service.config.settings import EnvSettings

    try:
        loaded = load_settings(
            config=config,
            model=names["model"],
            algorithm=names["algorithm"],
            env=names["env"],
            flags=flags,
            overrides=overrides,
        )
    except SettingsError as error:
        from rl_service.training.checks import check_env

        problems = check_env(EnvSettings(id=names["env"])) if names["env"] else []
        raise SettingsError([*error.problems, *problems]) from error
    from rl_service.training.checks import check_settings
    from rl_service.training.run import Run

    if problems := check_settings(loaded.settings):
        raise SettingsError(problems)
    return Run.create(loaded.settings, command=sys.argv), loaded


def _refuse_beside_resume(given: dict[str, Any]) -> None:
    """A resumed run keeps what it is; `-ne` and `--set` change its length and its numbers."""
    surplus = [
        name for name, value in given.items() if value is not None and name != "stop.iterations"
    ]
    if surplus:
        raise SettingsError(
            f"--resume takes its settings from the run, so {', '.join(surplus)} cannot be given; "
            f"change single ones with -ne or --set, or start a new run without --resume"
        )


def _resumed(
    resume: str, iterations: int | None, overrides: list[str], base_model: str | None
) -> tuple[Run, LoadedSettings]:
    from rl_service.config.load import change_settings
    from rl_service.training.checks import check_folder, check_machine
    from rl_service.training.run import Run

    run = Run.open(resume)
    settings, checkpoint = run.settings, run.checkpoints.latest()
    if checkpoint is not None and settings.model.base_model is not None:
        from rl_service.algorithms.state import locate_base_model  # torch takes seconds to load

        settings = locate_base_model(settings, checkpoint, base_model)
    loaded = change_settings(settings, iterations=iterations, overrides=overrides)
    if problems := [*check_machine(loaded.settings, resumes=True), *check_folder(run.path)]:
        raise SettingsError(problems)
    return run, loaded


def _run(loaded: LoadedSettings, run: Run) -> TrainResult:
    """Trains with the console to ourselves; what the libraries say goes to the run's log."""
    from rl_service.training.capture import captured_output

    settings = loaded.settings
    modules = ("rl_service.training.train", settings.model.learner_module)
    try:
        with captured_output(run.log_path) as (out, _):
            from rl_service.cli.display import TrainDisplay
            from rl_service.runtime.ray_session import ray_session

            with TrainDisplay(out) as display:
                # Before Ray starts: if the process dies with it, this says where to look.
                display.on_message(f"log: {short_path(run.log_path)}")
                for note in loaded.notes:
                    display.on_message(note)
                actor = settings.model.actor_module
                with ray_session(settings.resources, actor_module=actor, load=modules):
                    from rl_service.training.train import train as run_training

                    return run_training(settings, observer=display, run=run)
    except TrainingFailedError as error:
        raise type(error)(f"{error}; details are in {run.log_path}") from error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"continue from what is saved with rl-service train --resume {run.path}"
        ) from None
