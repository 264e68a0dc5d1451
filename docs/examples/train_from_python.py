"""Train any model with any algorithm from Python, then ask the trained policy.

`python -m docs.examples.train_from_python trpo` learns to walk the corridor of `own_environment`
in a minute; `ppo` and `a2c` work as well. With `ppo llm_policy`, a small language model with random
weights learns it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_service.config.load import load_settings
from rl_service.policies import load_bundle
from rl_service.training.observer import TrainingObserver
from rl_service.training.run import Run
from rl_service.training.train import train


class Printed(TrainingObserver):
    """Prints how well the policy does after each iteration."""

    def on_iteration(self, row: Mapping[str, Any]) -> None:
        print(row["training_iteration"], row["episode_return_mean"])  # noqa: T201


def train_policy(
    algorithm: str, model: str, output_dir: Path, overrides: Sequence[str] = ()
) -> Path:
    """Trains in the corridor and returns the folder of the best policy.

    Args:
        algorithm: `ppo`, `a2c` or `trpo`.
        model: `mlp`, `gpt2_critic` or `llm_policy`.
        output_dir: folder for `runs/` and `checkpoints/`.
        overrides: further settings, as for `--set`.
    """
    settings = load_settings(
        model=model,
        algorithm=algorithm,
        env="docs.examples.own_environment:Corridor",
        flags={"stop.iterations": 20, "seed": 1, "tracking.output_dir": str(output_dir)},
        overrides=["resources.num_env_runners=0", "algorithm.critic_lr=0.003", *overrides],
    ).settings
    result = train(settings, observer=Printed(), run=Run.create(settings, command=sys.argv))
    assert result.policy is not None
    return Path(result.policy)


def main(algorithm: str = "ppo", model: str = "mlp") -> None:
    """Trains, then asks the policy what to do in the first cell."""
    policy = load_bundle(train_policy(algorithm, model, Path()))
    answer = policy.act(np.zeros((1, 1), np.float32), deterministic=True)
    print("in the first cell:", answer.env_actions[0], "(1 is to the right)")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
