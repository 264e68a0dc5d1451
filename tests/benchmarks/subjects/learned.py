"""Our PPO, trained to a number of env steps and then scored."""

from __future__ import annotations

from rl_service.evaluation import evaluate
from rl_service.policies.runner import PolicyRunner
from tests.benchmarks.subjects.trainings import Trainings

LR = 3e-4


class OurLearning(Trainings):
    """One run in one process, with the settings that Stable-Baselines3 has by default."""

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        train_batch_size: int,
        minibatch_size: int,
        num_epochs: int,
        seed: int,
    ) -> None:
        run = {
            "env": {"id": env_id},
            "model": {"name": "mlp"},
            "algorithm": {
                "actor_lr": LR,
                "critic_lr": LR,
                "train_batch_size": train_batch_size,
                "minibatch_size": minibatch_size,
                "num_epochs": num_epochs,
                "normalize_values": False,
            },
            "resources": {"num_env_runners": 0, "num_envs_per_env_runner": num_envs},
            "seed": seed,
        }
        super().__init__({"run": run})

    def learn(self, env_steps: int, num_episodes: int) -> list[float]:
        """Trains, then plays; returns of the episodes."""
        algorithm = self.algorithms["run"]
        while algorithm.env_steps < env_steps:
            algorithm.train()
        policy, settings = algorithm.learner_policy, algorithm.settings
        runner = PolicyRunner(
            policy.net.actor, policy.observation_space.shape, policy.action_spec, None
        )
        played = evaluate(runner, settings.env, num_episodes=num_episodes, seed=settings.seed)
        returns: list[float] = played.returns.tolist()
        return returns
