"""Makes environments from settings: gymnasium ids, and the user's `module:Class`."""

from __future__ import annotations

import importlib.util
import logging
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import gymnasium as gym
import numpy as np

from custom_models.kinds import callables_of, import_own
from custom_models.spaces import ACTION_MASK, ActionSpec
from custom_models.text import nearest, one_line
from rl_service.common.errors import EnvError
from rl_service.config.presets import resolve_env_id
from rl_service.config.settings import EnvSettings
from rl_service.rollout import text_tasks  # noqa: F401 - registers environments
from rl_service.rollout.env_failures import exception_text, not_a_number, outside_space
from rl_service.rollout.flat import AnyEnv, FlatObservation, flat_env, with_masks_apart
from rl_service.rollout.partly_observed import HiddenEntries, ObservedReward
from rl_service.rollout.text_env import TextObservation, observes_text

_INTERFACE = (
    "reset(seed=, options=) must return (observation, info), and step(action) (observation, "
    "reward, terminated, truncated, info), as in gymnasium 1"
)
_LONG_EPISODE = 1000
"""Env steps in which an episode without a time limit should have ended."""
log = logging.getLogger(__name__)


def make_env(env: EnvSettings, *, render_mode: str | None = None) -> AnyEnv:
    """Makes an environment as the nets read it.

    Args:
        env: Settings; an id that gymnasium has dropped leads to its successor.
        render_mode: gymnasium's; None draws nothing.

    Returns:
        An environment with float32 observations (O,), cut off after `env.max_episode_steps`; text
        is a row of code points.

    Raises:
        EnvError: if it is unknown, cannot be made, or has spaces that the nets cannot read.
    """
    env_id, _ = resolve_env_id(env.id)
    made = _construct(env_id, env, render_mode)
    raw = made.observation_space
    made = with_masks_apart(made, action_masks=env.action_masks)
    try:
        if observes_text(made, env):
            flat: AnyEnv = TextObservation(made, env)
        else:
            flat = flat_env(made, raw, flatten_images=env.flatten_images)
        ActionSpec.from_space(flat.action_space)
    except TypeError as error:
        made.close()
        raise EnvError(f"environment {env_id} cannot be read: {one_line(error)}") from error
    if env.hide:
        assert isinstance(flat.observation_space, gym.spaces.Box)
        [size] = flat.observation_space.shape
        if max(env.hide) >= size:
            made.close()
            raise EnvError(
                f"env.hide={list(env.hide)} names an entry that observations of {env_id} do not "
                f"have; they have {size}, from 0 to {size - 1}"
            )
        flat = HiddenEntries(flat, env.hide)
    return ObservedReward(flat) if env.observe_reward else flat


def raw_observation_space(env: AnyEnv) -> gym.Space[Any]:
    """What an environment of `make_env` observes before it is flattened, a Box in float32."""
    if isinstance(env, HiddenEntries):
        env = env.env
    if isinstance(env, FlatObservation | TextObservation):
        space: gym.Space[Any] = env.raw_space
        return space
    return env.observation_space


def try_env(
    env: EnvSettings, *, may_be_endless: bool = False
) -> tuple[gym.spaces.Box, gym.Space[Any]]:
    """Resets an environment and takes one step in it, as training will do many times.

    Args:
        env: its settings.
        may_be_endless: whether its episodes may last for ever.

    Returns:
        Its observation space (flat float32) and its action space.

    Raises:
        EnvError: as `make_env`, or if it violates gymnasium's interface or its own spaces, or its
            episodes do not end.
    """
    with closing(make_env(env)) as made:
        space = made.observation_space
        assert isinstance(space, gym.spaces.Box)  # make_env lets no other through
        where, rng = "reset(seed=0)", np.random.default_rng(0)
        try:
            obs, info = made.reset(seed=0)
            error = outside_space(obs, space)
            if error is None:
                where = "its first step"
                obs, reward, terminated, truncated, info = made.step(
                    _random_action(made, info, rng)
                )
                error = outside_space(obs, space) or not_a_number(reward)
            goes_on = error is None and not (may_be_endless or terminated or truncated)
            endless = goes_on and _seems_endless(made, info, rng)
        except Exception as raised:  # an environment may raise anything
            error = exception_text(raised)
        if error is None and not endless:
            return space, made.action_space
    if error is None:
        raise EnvError(
            f"environment {env.id} has no time limit, and an episode of random actions did not end "
            f"in {_LONG_EPISODE:,} env steps; set env.max_episode_steps, to 200 for example"
        )
    raise EnvError(f"environment {env.id} cannot be used: {where}: {error}; {_INTERFACE}")


def _random_action(env: AnyEnv, info: dict[str, Any], rng: np.random.Generator) -> Any:
    """An action that the environment allows.

    Raises:
        ValueError: if its action mask does not fit its actions.
    """
    spec = ActionSpec.from_space(env.action_space)
    if not spec.is_categorical:
        if info.get(ACTION_MASK) is not None:
            raise ValueError("it masks actions that are a Box; set env.action_masks=false")
        return spec.middle[0]
    logits = rng.random((1, spec.num_dist_inputs), np.float32)
    mask = spec.mask_of(info)
    if mask is not None:
        logits[0, ~mask] = -1.0
    return spec.to_env(spec.likeliest(logits))[0]


def _seems_endless(env: AnyEnv, info: dict[str, Any], rng: np.random.Generator) -> bool:
    """Whether an episode that gymnasium sets no limit to does not end by itself."""
    if env.spec is None or env.spec.max_episode_steps is not None:
        return False
    for _ in range(_LONG_EPISODE):
        _, _, terminated, truncated, info = env.step(_random_action(env, info, rng))
        if terminated or truncated:
            return False
    return True


def _construct(env_id: str, env: EnvSettings, render_mode: str | None) -> AnyEnv:
    factory = _own_factory(env_id) if ":" in env_id else None
    if factory is None:
        _check_known(env_id)
    try:
        if factory is not None:
            return _from_factory(factory, env, render_mode)
        return _from_registry(env_id, env, render_mode)
    except Exception as error:  # an environment's constructor may raise anything
        raise EnvError(
            f"environment {env_id} cannot be made: {one_line(error) or type(error).__name__}; "
            f"check env.kwargs and what the environment needs installed"
        ) from error


def _from_registry(env_id: str, env: EnvSettings, render_mode: str | None) -> AnyEnv:
    entry_point = getattr(gym.registry.get(env_id), "entry_point", None)
    if "mujoco" in str(entry_point):
        log_mujoco_warnings()
    with without_version_hints():
        made = gym.make(
            env_id,
            max_episode_steps=env.max_episode_steps,
            disable_env_checker=True,
            **_render(render_mode),
            **env.kwargs,
        )
    return FreshWorld(made) if "BipedalWalker" in type(made.unwrapped).__name__ else made


def _from_factory(
    factory: Callable[..., AnyEnv], env: EnvSettings, render_mode: str | None
) -> AnyEnv:
    made = factory(**env.kwargs, **_render(render_mode))
    if not isinstance(made, gym.Env):
        raise TypeError(f"it returned {type(made).__name__}, not a gymnasium.Env")
    if env.max_episode_steps is None:
        return made
    return gym.wrappers.TimeLimit(made, env.max_episode_steps)


def _render(render_mode: str | None) -> dict[str, str]:
    """Arguments for a constructor, which need not know of drawing."""
    return {} if render_mode is None else {"render_mode": render_mode}


def _own_factory(env_id: str) -> Callable[..., AnyEnv] | None:
    """The class or function that `module:name` points to.

    None if the module has no such name but registers an environment of that id in gymnasium.
    """
    module_name, _, attribute = env_id.partition(":")
    try:
        module = import_own(module_name)
    except ValueError as error:
        raise EnvError(f"environment {env_id} cannot be made: {error}") from error
    factory = getattr(module, attribute, None)
    if callable(factory):
        if _makes_envs(factory):
            return factory  # type: ignore[no-any-return]
        raise EnvError(
            f"environment {env_id} is none: {attribute} is neither a class derived from "
            f"gymnasium.Env nor a function annotated to return one (`-> gymnasium.Env`)"
        )
    if attribute in gym.registry:
        return None
    raise EnvError(
        f"environment {env_id} is unknown: module {module_name} has no callable {attribute}"
        f"{_hint(attribute, callables_of(module))}"
    )


def _makes_envs(factory: Callable[..., Any]) -> bool:
    """Whether a callable says that it makes environments.

    The name may come from someone else's policy bundle, and calling whatever it points to
    (`subprocess:run`) would let a bundle run any program.
    """
    if isinstance(factory, type):
        return issubclass(factory, gym.Env)
    try:
        returned = typing.get_type_hints(factory).get("return")
    except (NameError, TypeError):  # an annotation for type checkers alone
        return False
    returned = typing.get_origin(returned) or returned
    return isinstance(returned, type) and issubclass(returned, gym.Env)


def _check_known(env_id: str) -> None:
    name = env_id.rpartition(":")[2]
    if name in gym.registry:
        return
    hint = _hint(name, gym.registry) or "; give a gymnasium id or module:Class"
    raise EnvError(f"environment {env_id} is unknown{hint}")


def _hint(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f"; did you mean {near}?" if near else ""


@contextmanager
def without_version_hints() -> Iterator[None]:
    """Silences gymnasium's hint that an environment has a later version."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
        yield


def log_mujoco_warnings() -> None:
    """Sends MuJoCo's warnings to Python's log, and to no file in the current folder."""
    if importlib.util.find_spec("mujoco") is None:
        return
    import mujoco  # type: ignore[import-untyped]  # slow to load, and only some envs need it

    mujoco.set_mju_user_warning(lambda text: log.info("MuJoCo: %s", text))


class FreshWorld(gym.Wrapper[Any, Any, Any, Any]):
    """Gives `BipedalWalker` a new physics world for every episode.

    It keeps one for life, so that what a seed leads to depends on all episodes before it; the
    other Box2D environments make a new one in each reset.
    """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        import Box2D  # type: ignore[import-untyped]  # only this environment needs it

        walker: Any = self.unwrapped
        walker._destroy()
        walker.world = Box2D.b2World()
        return self.env.reset(seed=seed, options=options)
