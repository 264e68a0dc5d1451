"""What a run says at its end: the result, the policy, and what one may do next."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_service.cli.figures import mean_std, short_path, speed
from rl_service.training.observer import TrainResult


def print_summary(console: Console, result: TrainResult) -> None:
    """Prints the final evaluation, the bundle and the next commands."""
    console.print()
    console.print(Text(_headline(result), style="bold"), soft_wrap=True)
    if result.episodes:
        console.print("\nEvaluation of the best policy, with deterministic actions:")
        console.print(_evaluation_table(result))
    if result.policy:
        console.print(Text(f"Best policy: {short_path(result.policy)}"), soft_wrap=True)
    if result.registered:
        console.print(Text(f"In the registry: {result.registered}"), soft_wrap=True)
    console.print("\nNext:")
    for command, purpose in _next_commands(result):
        # Never wrapped or cut: a command is there to be copied.
        console.print(Text.assemble("  ", (command, "cyan")), soft_wrap=True)
        console.print(Text(f"      {purpose}", style="dim"))


def _headline(result: TrainResult) -> str:
    done = f"{result.iterations:,} iterations, {result.env_steps:,} env steps"
    if result.status == "stopped":
        return f"Stopped on request after {done}; a checkpoint is saved."
    return f"Finished: {done} at {speed(result.env_steps_per_s)} steps/s."


def _evaluation_table(result: TrainResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("env", no_wrap=True)
    table.add_column("model", no_wrap=True)
    table.add_column("episodes", justify="right")
    table.add_column("episode return", justify="right", no_wrap=True)
    episode_return = mean_std(result.episode_return_mean, result.episode_return_std)
    table.add_row(
        result.env, result.model, str(result.episodes), Text(episode_return, style="bold")
    )
    return table


def _next_commands(result: TrainResult) -> list[tuple[str, str]]:
    run = short_path(result.run)
    resume = (f"rl-service train --resume {run}", "go on where it stopped")
    if result.status == "finished":  # its own limit is reached: going on takes another one
        resume = (f"{resume[0]} -ne {2 * result.iterations}", "train twice as long")
    commands = [resume, (f"tensorboard --logdir {run}", "look at the curves")]
    if result.policy:
        evaluate = f"rl-service evaluate {short_path(result.policy)}"
        commands.insert(0, (evaluate, "play more episodes; --video FILE.mp4 shows one"))
    return commands
