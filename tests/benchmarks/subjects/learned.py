"""Our algorithms, trained to a number of env steps and then scored."""

from __future__ import annotations

from rl_service.policies.runner import PolicyRunner
from rl_service.training.evaluation import evaluate
from tests.benchmarks.subjects.trainings import Trainings


class Learned(Trainings):
    """Trainings whose final policies play."""

    def learn(self, name: str, env_steps: int, num_episodes: int) -> list[float]:
        """Trains, then plays deterministic episodes from seed + i; their returns."""
        algorithm = self.algorithms[name]
        while algorithm.env_steps < env_steps:
            algorithm.train()
        policy, settings = algorithm.learner_policy, algorithm.settings
        runner = PolicyRunner(
            policy.net.actor, policy.observation_space.shape, policy.action_spec, None
        )
        played = evaluate(runner, settings.env, num_episodes=num_episodes, seed=settings.seed)
        returns: list[float] = played.returns.tolist()
        return returns
