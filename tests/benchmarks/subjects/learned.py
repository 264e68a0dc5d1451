"""Our algorithms, trained to a number of env steps and then scored."""

from __future__ import annotations

from collections import deque
from statistics import fmean

from rl_service.algorithms import compiled as steps_in_c
from rl_service.policies.runner import PolicyRunner
from rl_service.training.evaluation import evaluate
from tests.benchmarks.subjects.settings import Variant
from tests.benchmarks.subjects.trainings import Trainings


class Learned(Trainings):
    """Trainings, and what they come to.

    Args:
        variants: as for `Trainings`.
        compiled: whether gradient steps may be machine code.
    """

    def __init__(self, variants: dict[str, Variant], *, compiled: bool = True) -> None:
        if not compiled:
            steps_in_c.library = lambda: None
        super().__init__(variants)

    def curve(self, name: str, env_steps: int) -> list[tuple[int, float]]:
        """Trains; after each iteration, the steps so far and the mean return of 100 episodes."""
        algorithm, curve = self.algorithms[name], []
        returns: deque[float] = deque(maxlen=100)
        while algorithm.env_steps < env_steps:
            algorithm.train()
            returns.extend(episode.episode_reward for episode in algorithm.pop_episodes())
            if returns:
                curve.append((algorithm.env_steps, fmean(returns)))
        return curve

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
