"""`rl-service evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_service.cli.console import AllowModule, AsJson, BaseModel, allow_modules
from rl_service.common.errors import SettingsError

if TYPE_CHECKING:  # the commands load what they need, so that help and errors come at once
    from rl_service.training.evaluation import EvaluationResult

_POLICY_HELP = "A bundle's folder; NAME, NAME@ALIAS or NAME:VERSION of the registry; or zoo:NAME."


def evaluate(
    policy: Annotated[str | None, typer.Argument(help=_POLICY_HELP)] = None,
    file_path: Annotated[
        str | None, typer.Option("--file-path", "-f", help="The same as POLICY.")
    ] = None,
    num_episodes: Annotated[
        int, typer.Option("--num-episodes", "-ne", help="Episodes to play.")
    ] = 20,
    seed: Annotated[int, typer.Option(help="Episode i starts from seed + i.")] = 123,
    running_rew_len: Annotated[
        int, typer.Option("--running-rew-len", help="Episodes in the running mean of returns.")
    ] = 50,
    max_episode_steps: Annotated[
        int, typer.Option(help="Cut off an episode that is still running after as many env steps.")
    ] = 10_000,
    video: Annotated[
        Path | None, typer.Option(metavar="FILE.mp4", help="Write a video of the first episode.")
    ] = None,
    base_model: BaseModel = None,
    allow_module: AllowModule = None,
    as_json: AsJson = False,
) -> None:
    """Play episodes with a trained policy, always its most likely action."""
    allow_modules(allow_module)
    folder = _one_policy(policy, file_path)
    _check_counts(num_episodes, seed, running_rew_len, max_episode_steps)
    from rl_service.policies import load_bundle
    from rl_service.training.evaluation import evaluate as play

    runner = load_bundle(folder, base_model)
    spec = runner.spec
    result = play(
        runner,
        spec.env,
        num_episodes=num_episodes,
        seed=seed,
        video=video,
        max_episode_steps=max_episode_steps,
        on_message=lambda text: typer.echo(text, err=True),
    )
    _print_table(result, seed, running_rew_len)
    typer.echo(
        f"{len(result.returns)} episodes: return {result.mean:.2f} ± {result.std:.2f}, "
        f"min {result.min:.2f}, max {result.max:.2f}"
    )
    if cuts := result.cut_off_text(max_episode_steps, "raise --max-episode-steps"):
        typer.echo(cuts)
    if video is not None:
        typer.echo(f"video: {video}")
    if as_json:
        summary = {
            "env": spec.env.id,
            "algo": spec.provenance.get("algorithm"),
            "model": spec.model.name,
            "seed": seed,
            "episodes": len(result.returns),
            "episode_return_mean": result.mean,
            "episode_return_std": result.std,
            "unfinished_episodes": len(result.unfinished),
            "policy": str(folder),
        }
        typer.echo(json.dumps(summary))


def _one_policy(policy: str | None, file_path: str | None) -> Path:
    from rl_service.policies.locate import find_policy

    reference = policy or file_path
    if not reference or (policy and file_path):
        raise SettingsError("give one policy: rl-service evaluate FOLDER, NAME@ALIAS or zoo:NAME")
    return find_policy(reference)  # before torch is loaded, which takes seconds


def _check_counts(
    num_episodes: int, seed: int, running_rew_len: int, max_episode_steps: int
) -> None:
    limits = [
        ("--num-episodes", num_episodes, 1),
        ("--seed", seed, 0),
        ("--running-rew-len", running_rew_len, 1),
        ("--max-episode-steps", max_episode_steps, 1),
    ]
    problems = [
        f"{flag}={value} is too small; give at least {least}"
        for flag, value, least in limits
        if value < least
    ]
    if seed >= 2**31:  # as in the settings of a run
        problems.append(f"--seed={seed} is too large; give at most {2**31 - 1}")
    if problems:
        raise SettingsError(problems)


def _print_table(result: EvaluationResult, seed: int, running_rew_len: int) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for heading in ("episode", "seed", "return", "length", f"mean of last {running_rew_len}"):
        table.add_column(heading, justify="right")
    running = result.running_mean(running_rew_len)
    for i, (episode_return, length) in enumerate(zip(result.returns, result.lengths, strict=True)):
        cut = "+" if i in result.unfinished else ""  # it would have lasted longer
        row = (i, seed + i, f"{episode_return:.2f}", f"{length}{cut}", f"{running[i]:.2f}")
        table.add_row(*map(str, row))
    Console().print(table)
