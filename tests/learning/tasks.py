"""What is promised to be learned, from the presets that a user's command takes."""

from __future__ import annotations

from dataclasses import dataclass

SEEDS = (100, 200, 300, 400, 500)
"""Apart, since the 20 episodes of a final evaluation start from seed, seed + 1, …"""


@dataclass(frozen=True)
class Task:
    """A preset and the return that its best policy reaches, averaged over the seeds."""

    env: str
    model: str
    algorithm: str
    target: float
    """Mean return of 20 deterministic episodes, episode i starting from seed + i."""
    config: str | None = None
    """A settings file that has all this."""

    @property
    def name(self) -> str:
        return f"{self.env} {self.model} {self.algorithm}" + f" {self.config or ''}".rstrip()

    @property
    def command(self) -> str:
        if self.config is not None:
            return f"rl-service train --config {self.config}"
        return f"rl-service train -e {self.env} -m {self.model} -a {self.algorithm}"


TASKS = (
    Task("LunarLander-v3", "gpt2_critic", "ppo", 200.0, config="quickstart"),
    Task("CartPole-v1", "mlp", "ppo", 475.0),
    Task("Pendulum-v1", "mlp", "ppo", -250.0),
    Task("CartPole-v1", "mlp", "a2c", 475.0),
    Task("Pendulum-v1", "mlp", "a2c", -200.0),
    Task("CartPole-v1", "mlp", "trpo", 475.0),
    Task("Acrobot-v1", "mlp", "trpo", -100.0),
    Task("HalfCheetah-v4", "mlp", "trpo", 1500.0),
)
