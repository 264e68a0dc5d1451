"""Names of actions, and the keys that choose them."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym

from custom_models.spaces import ActionSpec


class Controls(NamedTuple):
    """Discrete actions by name, and the keys that choose them."""

    actions: list[str]
    keys: dict[str, int]


_LEFT, _UP, _RIGHT = "ArrowLeft", "ArrowUp", "ArrowRight"
_CONTROLS = {
    "CartPoleEnv": Controls(["left", "right"], {_LEFT: 0, _RIGHT: 1}),
    "MountainCarEnv": Controls(["left", "nothing", "right"], {_LEFT: 0, _RIGHT: 2}),
    "AcrobotEnv": Controls(["torque -1", "torque 0", "torque 1"], {_LEFT: 0, _RIGHT: 2}),
    # The left engine tilts the lander to the left and pushes it there.
    "LunarLander": Controls(
        ["nothing", "left engine", "main engine", "right engine"], {_LEFT: 1, _UP: 2, _RIGHT: 3}
    ),
}
"""By the environment's class, so that ids with other wrappers or versions have them, too."""


def controls_of(env: gym.Env[Any, Any], spec: ActionSpec) -> Controls | None:
    """How a person chooses an action; None for actions that are no single choice."""
    if spec.kind != "discrete":
        return None
    known = _CONTROLS.get(type(env.unwrapped).__name__)
    if known is not None and (spec.start, spec.size) == (0, len(known.actions)):
        return known
    numbers = range(spec.start, spec.start + spec.size)
    return Controls([str(n) for n in numbers], {str(n): n for n in numbers if 0 <= n <= 9})
