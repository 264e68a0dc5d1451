"""A policy in its environment, one step at a time: what it sees, does and expects, as JSON."""

from __future__ import annotations

import base64
import io
import secrets
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from PIL import Image

from custom_models.history import RunningHistory
from custom_models.kinds import allow_module
from custom_models.spaces import FloatArray
from rl_service.common.errors import BundleError, EnvError, ObservationError
from rl_service.config.settings import EnvSettings
from rl_service.page.allowed import check_env_is_allowed
from rl_service.page.child import PlayError
from rl_service.page.controls import controls_of
from rl_service.policies.bundle import BundledPolicy, load_bundle
from rl_service.policies.runner import Actions, CriticRunner, critic_of
from rl_service.rollout.env_failures import exception_text, failure_text, not_finite
from rl_service.rollout.envs import make_env
from rl_service.training.evaluation import check_spaces, evaluate
from rl_service.training.video import DEFAULT_FPS, draw, make_drawable_env

_MAX_NUMBERS = 10_000
"""Of an observation or a distribution that a page can show."""
_MAX_FRAME = (800, 600)
_JPEG_QUALITY = 80
_MAX_VIDEO_STEPS = 1000

Env = gym.Env[Any, Any]
Reply = dict[str, Any]


class PlayedEpisode:
    """A policy and its environment, and the episode that they are in. `reset` begins it.

    Args:
        bundle: folder of the policy.
        base_model: see `load_bundle`.
        allow_modules: modules from which the bundle may take its environment and its model.

    Raises:
        BundleError: if the policy cannot be loaded.
        EnvError: if its environment may not be made here, cannot be made or cannot be drawn.
    """

    def __init__(self, bundle: Path, base_model: str | None, allow_modules: Sequence[str]) -> None:
        self._policy, settings = _load(bundle, base_model, allow_modules)
        self._env_id, self._spec = settings.id, self._policy.action_spec
        _check_can_be_shown(self._policy, settings)
        self._env = make_drawable_env(settings)
        self._critic = _critic(bundle)
        lengths = [self._policy.actor.context_length]
        if self._critic is not None:
            lengths.append(self._critic.context_length)
        self._histories = [RunningHistory(1, length, self._spec) for length in lengths]
        """Of the actor, and of the critic if there is one."""
        self._seed = self._step = 0
        self._obs: FloatArray = np.zeros(0, np.float32)
        self._mask: npt.NDArray[np.bool_] | None = None
        """(1, D) which actions the environment allows next; None: all."""
        self._next: Actions | None = None
        """What the policy would do now; None before the first reset and after the end."""
        self._action: Any = None
        self._reward = self._episode_return = 0.0
        self._has_ended = False

    @property
    def description(self) -> Reply:
        """What does not change from step to step."""
        controls = controls_of(self._env, self._spec)
        return {
            "env": self._env_id,
            "actions": None if controls is None else controls.actions,
            "keys": {} if controls is None else controls.keys,
            "fps": self._env.metadata.get("render_fps") or DEFAULT_FPS,
            "has_value": self._critic is not None,
        }

    def reset(self, seed: int | None) -> Reply:
        """Begins an episode.

        Args:
            seed: None draws one.

        Raises:
            EnvError: if the environment fails.
        """
        self._seed = secrets.randbelow(2**31) if seed is None else seed
        self._step, self._action, self._has_ended = 0, None, False
        self._reward = self._episode_return = 0.0
        for history in self._histories:
            history.forget([0])
        try:
            obs, info = self._env.reset(seed=self._seed)
            self._note_mask(info)
        except Exception as error:  # an environment may raise anything
            raise self._failure(exception_text(error)) from error
        self._see(obs)
        return self._state()

    def step(self, action: Any) -> Reply:
        """Takes one step.

        Args:
            action: as the environment takes it, flattened; None is what the policy would do.

        Raises:
            PlayError: if the episode has ended, or if there is no such action.
            EnvError: if the environment fails.
        """
        if self._has_ended or self._next is None:
            raise PlayError("episode_ended", 409, "the episode has ended; reset the play first")
        if action is None:
            env_actions, actions = self._next.env_actions, self._next.actions
        else:
            env_actions = self._read_action(action)
            actions = self._spec.from_env(env_actions)
            if not self._is_allowed(actions):
                raise PlayError.invalid("the environment does not allow this action now")
        for history in self._histories:
            history.acted(actions)
        self._step += 1
        try:
            obs, reward, terminated, truncated, info = self._env.step(env_actions[0])
            self._reward, self._has_ended = float(reward), bool(terminated or truncated)
            self._note_mask({} if self._has_ended else info)
        except Exception as error:  # an environment may raise anything
            raise self._failure(exception_text(error)) from error
        self._action = _plain(env_actions)
        self._episode_return += self._reward
        self._see(obs)
        return self._state()

    def ask(self, observation: Any) -> Reply:
        """What the policy would do at another observation (O,); nothing moves.

        Raises:
            PlayError: if it is no such observation.
        """
        obs = _read_numbers(observation, self._obs.size, "observation").astype(np.float32)
        try:
            _, reply = self._decide(obs)
        except ObservationError as error:
            raise PlayError.invalid(str(error)) from error
        finally:
            for history in self._histories:
                history.observed(self._obs[None])
        return reply

    def _note_mask(self, info: dict[str, Any]) -> None:
        mask = self._spec.mask_of(info)
        self._mask = None if mask is None else mask[None]

    def _is_allowed(self, actions: npt.NDArray[Any]) -> bool:
        if self._mask is None:
            return True
        return bool(self._mask[0, actions.reshape(-1) + self._spec.first_logits].all())

    def _see(self, obs: Any) -> None:
        self._obs = np.array(obs, np.float32)
        error = not_finite(self._obs, self._reward)
        if error:
            raise self._failure(error)

    def _failure(self, error: str) -> EnvError:
        where = failure_text(self._seed, self._step, error)
        return EnvError(f"environment {self._env_id} failed, {where}")

    def _state(self) -> Reply:
        self._next, reply = self._decide(self._obs)
        reply["next_action"] = reply.pop("action")
        return reply | {
            "step": self._step,
            "frame": _jpeg_url(draw(self._env)),
            "observation": self._obs.tolist(),
            "action": self._action,
            "reward": self._reward,
            "episode_return": self._episode_return,
            "ended": self._has_ended,
        }

    def _decide(self, obs: FloatArray) -> tuple[Actions, Reply]:
        """What the policy does at an observation (O,), and that as JSON."""
        seen, *critic_seen = (history.observed(obs[None]) for history in self._histories)
        raw = obs.reshape(1, *self._policy.observation_shape)
        chosen = self._policy.act(raw, deterministic=True, history=seen, mask=self._mask)
        outputs = chosen.dist_inputs[0].astype(np.float64)  # (num_dist_inputs,)
        if not np.isfinite(outputs).all():
            raise ObservationError("the policy has no finite answer to this observation")
        prompts = self._policy.actor.prompts(self._policy.reads(raw, seen))
        reply: Reply = {
            "action": _plain(chosen.env_actions),
            "probabilities": None,
            "mean": None,
            "std": None,
            "value": None,
            "prompt": None if prompts is None else prompts[0],
        }
        if self._spec.is_categorical:
            choices = np.split(outputs, self._spec.first_logits[1:])
            weights = [np.exp(logits - logits.max()) for logits in choices]
            reply["probabilities"] = np.concatenate([w / w.sum() for w in weights]).tolist()
        else:
            mean, log_std = np.split(outputs, 2)
            reply |= {"mean": mean.tolist(), "std": np.exp(log_std).tolist()}
        if self._critic is not None:
            value = float(self._critic.values(critic_seen[0], np.array([self._step]))[0])
            reply["value"] = value if np.isfinite(value) else None
        return chosen, reply

    def _read_action(self, given: Any) -> npt.NDArray[Any]:
        """An env action of a client, (1,) or (1, *shape)."""
        spec = self._spec
        if spec.kind == "discrete":
            last = spec.start + spec.size - 1
            if type(given) is not int or not spec.start <= given <= last:
                raise PlayError.invalid(
                    f"action must be an integer from {spec.start} to {last}, or null for what the "
                    f"policy would do"
                )
            return np.array([given])
        numbers = _read_numbers(given, spec.size, "action")
        if spec.kind == "multi_discrete":
            low, high = np.array(spec.low), np.add(spec.low, spec.sizes) - 1
            fits = (numbers >= low) & (numbers <= high) & (numbers == np.floor(numbers))
        else:
            low, high = np.array([spec.low, spec.high], spec.dtype)
            rounded = numbers.astype(spec.dtype)
            fits = (rounded >= low) & (rounded <= high)
        if not fits.all():
            raise PlayError.invalid(
                f"action is outside of the environment's bounds, from {low.tolist()} to "
                f"{high.tolist()}"
            )
        return numbers.astype(spec.dtype).reshape(1, *spec.shape)


def record_episode(
    bundle: Path, base_model: str | None, allow_modules: Sequence[str], video: Path
) -> None:
    """Writes an mp4 file of an episode in which the policy takes its most likely actions.

    Raises:
        BundleError: if the policy cannot be loaded.
        EnvError: if its environment may not be made here, cannot be made, fails or cannot be drawn.
        OutputError: if the video cannot be written.
    """
    policy, settings = _load(bundle, base_model, allow_modules)
    evaluate(
        policy, settings, num_episodes=1, seed=0, video=video, max_episode_steps=_MAX_VIDEO_STEPS
    )


def _load(
    bundle: Path, base_model: str | None, allow_modules: Sequence[str]
) -> tuple[BundledPolicy, EnvSettings]:
    for module in allow_modules:
        allow_module(module)
    policy = load_bundle(bundle, base_model)
    check_env_is_allowed(policy.spec.env, allow_modules)
    return policy, policy.spec.env


def _check_can_be_shown(policy: BundledPolicy, settings: EnvSettings) -> None:
    """Makes the environment once without a picture, to say in words what is wrong with it."""
    with closing(make_env(settings)) as env:
        check_spaces(policy, env, settings.id)
        if "rgb_array" not in env.metadata.get("render_modes", ()):
            raise EnvError(
                f"environment {settings.id} is not played: it has no render mode rgb_array, so "
                f"there is nothing to show"
            )
    size = max(policy.spec.observed_space.size, policy.action_spec.num_dist_inputs)
    if size > _MAX_NUMBERS:
        raise EnvError(
            f"environment {settings.id} is not played: it has observations or actions of {size:,} "
            f"numbers, and a page shows at most {_MAX_NUMBERS:,}"
        )


def _critic(bundle: Path) -> CriticRunner | None:
    try:
        return critic_of(bundle)
    except BundleError:  # a critic that cannot be asked alone
        return None


def _plain(env_actions: npt.NDArray[Any]) -> int | list[float]:
    """The one action of a batch: an integer, or a flat list."""
    if env_actions.ndim == 1 and env_actions.dtype.kind in "iu":
        return int(env_actions[0])
    numbers: list[float] = env_actions[0].reshape(-1).tolist()
    return numbers


def _read_numbers(given: Any, size: int, what: str) -> npt.NDArray[np.float64]:
    """Numbers (size,) of a client, finite in float32."""
    if isinstance(given, list) and len(given) == size and {type(x) for x in given} <= {int, float}:
        with suppress(OverflowError):  # an integer of hundreds of digits
            numbers = np.array([float(x) for x in given])
            if (np.abs(numbers) <= np.finfo(np.float32).max).all():
                return numbers
    raise PlayError.invalid(f"{what} must be a list of {size} finite numbers")


def _jpeg_url(frame: npt.NDArray[np.uint8]) -> str:
    """A picture (height, width, 3) as a data URL, made smaller if it is large."""
    image = Image.fromarray(frame).convert("RGB")
    image.thumbnail(_MAX_FRAME)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_JPEG_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
