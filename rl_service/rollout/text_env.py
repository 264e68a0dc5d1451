"""Environments whose observations are text, as rows of code points: see `custom_models.text_rows`.

The text is a `spaces.Text` observation, or what `env.describe` says: `info["text"]`, or a function
of the environment's own observation.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from custom_models.kinds import import_object
from custom_models.spaces import ACTION_MASK, FloatArray
from custom_models.text import one_line
from custom_models.text_rows import LARGEST_CODE_POINT, MAX_ACTIONS, text_row
from rl_service.config.settings import EnvSettings

ADMISSIBLE_ACTIONS = "admissible_actions"
"""Key of the actions' texts in an environment's `info`."""
_INFO = "info"


class TextRows(gym.spaces.Box):
    """Rows (O,) of text.

    Args:
        max_length: O.
        brings_actions: whether each row brings the actions that are admissible.
    """

    def __init__(self, max_length: int, brings_actions: bool) -> None:
        super().__init__(0.0, LARGEST_CODE_POINT, (max_length,), np.float32)
        self.brings_actions = brings_actions


class TextSpace(gym.spaces.Text):
    """What an environment of text observes, as a bundle describes it; see `TextRows`."""

    def __init__(self, max_length: int, brings_actions: bool) -> None:
        super().__init__(max_length)
        self.brings_actions = brings_actions


def observes_text(env: gym.Env[Any, Any], settings: EnvSettings) -> bool:
    """Whether an environment is to be read as text."""
    return settings.describe is not None or isinstance(env.observation_space, gym.spaces.Text)


class TextObservation(gym.Wrapper[FloatArray, Any, Any, Any]):
    """Yields rows of text, and lets a number choose among `info["admissible_actions"]`.

    An environment whose action space is `Text` gets the chosen action's text, any other one its
    number. `info["action_mask"]` allows as many actions as there are.

    Args:
        env: the environment.
        settings: how its text is found, and how long it may be.

    Raises:
        TypeError: if settings do not fit text; the message says what to do.
    """

    def __init__(self, env: gym.Env[Any, Any], settings: EnvSettings) -> None:
        super().__init__(env)
        _check_settings(settings)
        self._describe = _describer(settings.describe)
        self._max_length = settings.max_text_length
        self._takes_text = isinstance(env.action_space, gym.spaces.Text)
        if self._takes_text:
            self.action_space = gym.spaces.Discrete(MAX_ACTIONS)
        self.raw_space = TextSpace(self._max_length, self._takes_text)
        self.observation_space = TextRows(self._max_length, self._takes_text)
        self._actions: list[str] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._read(obs, info, is_over=False)

    def step(self, action: Any) -> tuple[FloatArray, Any, bool, bool, dict[str, Any]]:
        if self._takes_text:
            if action >= len(self._actions):
                raise ValueError(f"action {action} is none of {len(self._actions)} admissible ones")
            action = self._actions[int(action)]
        obs, reward, terminated, truncated, info = self.env.step(action)
        row, info = self._read(obs, info, is_over=terminated or truncated)
        return row, reward, terminated, truncated, info

    def _read(
        self, obs: Any, info: dict[str, Any], *, is_over: bool
    ) -> tuple[FloatArray, dict[str, Any]]:
        text = self._describe(obs, info)
        if not isinstance(text, str):
            raise TypeError(f"the observation's text is a {type(text).__name__}; give a str")
        self._actions = _offered(info)
        if self._actions:
            info = {**info, ACTION_MASK: self._mask()}
        elif self._takes_text and not is_over:
            raise ValueError(
                f'its actions are texts, and info["{ADMISSIBLE_ACTIONS}"] gives none; give 2 to '
                f"{MAX_ACTIONS} at each reset and step"
            )
        return text_row(text, self._actions, self._max_length), info

    def _mask(self) -> Any:
        if not isinstance(self.action_space, gym.spaces.Discrete):
            raise TypeError(
                f"admissible actions are for an action space that is Text or Discrete, and this is "
                f"{self.action_space}; leave them out"
            )
        size = int(self.action_space.n)
        if len(self._actions) > size:
            raise ValueError(
                f"there are {len(self._actions)} admissible actions, and the action space has "
                f"{size}; offer fewer"
            )
        return (np.arange(size) < len(self._actions)).astype(np.int8)


def _offered(info: dict[str, Any]) -> list[str]:
    """The admissible actions of an info, if there are any.

    Raises:
        TypeError: if they are no texts.
        ValueError: if there is a mask, too: it would count the actions in another way.
    """
    actions = info.get(ADMISSIBLE_ACTIONS)
    if actions is None:
        return []
    offered = list(actions)
    if isinstance(actions, str) or not all(isinstance(action, str) for action in offered):
        raise TypeError(f'info["{ADMISSIBLE_ACTIONS}"] is no list of texts; give one')
    if offered and info.get(ACTION_MASK) is not None:
        raise ValueError(
            f'info has both "{ADMISSIBLE_ACTIONS}" and "{ACTION_MASK}"; give one of them, or set '
            f"env.action_masks=false to leave the mask out"
        )
    return offered


def _check_settings(settings: EnvSettings) -> None:
    """Refuses what is for numbers."""
    given = {
        "backend=envpool": settings.backend != "gymnasium",
        "observation_filter=MeanStdFilter": settings.observation_filter != "NoFilter",
        "hide": bool(settings.hide),
        "observe_reward=true": settings.observe_reward,
    }
    wrong = [f"env.{name}" for name, is_given in given.items() if is_given]
    if wrong:
        raise TypeError(
            f"its observations are text, and {', '.join(wrong)} is for numbers; leave it out"
        )


def _describer(describe: str | None) -> Callable[[Any, dict[str, Any]], Any]:
    """What gives the text of an observation and its info."""
    if describe is None:
        return lambda obs, info: obs
    if describe == _INFO:
        return _text_of_info
    try:
        function = import_object(describe)
    except ValueError as error:
        raise TypeError(f"env.describe={describe}: {one_line(error)}") from error
    if not _returns_text(function):
        raise TypeError(
            f"env.describe={describe} is no function annotated to return a text (`-> str`)"
        )
    return lambda obs, info: function(obs)


def _text_of_info(obs: Any, info: dict[str, Any]) -> Any:
    if "text" not in info:
        raise ValueError(
            'info has no "text", which env.describe=info reads; give it at each reset and step'
        )
    return info["text"]


def _returns_text(function: Any) -> bool:
    """Whether a function says that it describes.

    The name may come from someone else's policy bundle, and calling whatever it points to would
    let a bundle run any program.
    """
    try:
        return typing.get_type_hints(function).get("return") is str
    except (NameError, TypeError):  # no function, or an annotation for type checkers alone
        return False
