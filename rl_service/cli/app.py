"""The command line's verbs, and how its errors reach the user: one line, and an exit status."""

from __future__ import annotations

import os
import sys

import typer

from rl_service.cli.cluster import cluster
from rl_service.cli.compare import compare
from rl_service.cli.console import command_group
from rl_service.cli.doctor import doctor
from rl_service.cli.evaluate import evaluate
from rl_service.cli.jobs import jobs, submit
from rl_service.cli.models import models
from rl_service.cli.policies import policies
from rl_service.cli.serve import serve
from rl_service.cli.train import train
from rl_service.cli.tune import tune
from rl_service.cli.ui import ui
from rl_service.common.errors import (
    RLServiceError,
    SettingsError,
    TrainingFailedError,
    WorkersLostError,
)

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130
EXIT_TRY_LATER = os.EX_TEMPFAIL  # 75: with --resume, once there is room for rollout workers


def _with_dashes(name: str) -> str:
    """Lets the paper's `--num_epochs` mean `--num-epochs`."""
    return name.replace("_", "-")


app = command_group(
    "rl-service",
    "Train transformer policies with RLlib across rollout workers, evaluate and serve them.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"token_normalize_func": _with_dashes, "help_option_names": ["-h", "--help"]},
)
for verb in (train, evaluate, compare, tune, serve, ui, doctor):
    app.command()(verb)
app.command(context_settings={"ignore_unknown_options": True})(submit)
for group in (models, policies, cluster, jobs):
    app.add_typer(group)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line.

    Args:
        arguments: without the program's name; None takes those of the process.

    Returns:
        The exit status: 0, 1 if a run failed, 2 for bad input, 75 if it lost all its rollout
        workers, 130 after Ctrl-C.
    """
    if os.getcwd() not in sys.path:  # `--env my_module:MyEnv` finds it here, as with `python -m`
        sys.path.append(os.getcwd())
    try:
        return int(app(args=arguments, prog_name="rl-service", standalone_mode=False) or 0)
    except SettingsError as error:
        return _report(error.problems, EXIT_BAD_INPUT)
    except RLServiceError as error:
        return _report([str(error)], EXIT_BAD_INPUT)
    except typer.TyperException as error:
        return _report([_usage(error)], EXIT_BAD_INPUT)
    except WorkersLostError as error:
        return _report([str(error)], EXIT_TRY_LATER)
    except TrainingFailedError as error:
        return _report([str(error)], EXIT_FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED


def _report(problems: list[str], status: int) -> int:
    for problem in problems:
        typer.echo(f"error: {' '.join(problem.split())}", err=True)
    return status


def _usage(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "rl-service"
    return f"{error.format_message().rstrip('.')}; see {command} --help"
