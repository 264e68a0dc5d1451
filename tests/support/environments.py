"""The seven environments that the presets cover."""

from __future__ import annotations

ENVIRONMENTS = (
    "CartPole-v1",
    "Acrobot-v1",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "Pendulum-v1",
    "HalfCheetah-v4",
    "Walker2d-v4",
)
