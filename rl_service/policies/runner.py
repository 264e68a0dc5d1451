"""Pure inference: raw observations in, actions or values out. Torch and NumPy, no Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from custom_models.distributions import MASKED, distribution
from custom_models.history import History
from custom_models.interfaces import Actor, Chunks, Critic
from custom_models.spaces import ActionSpec, FloatArray
from custom_models.text import one_line
from rl_service.common.errors import BundleError, ObservationError
from rl_service.rollout.filters import ObservationNormalizer, hide


class Actions(NamedTuple):
    """What a policy answers to a batch of B observations."""

    env_actions: npt.NDArray[Any]
    """What `env.step` takes: (B,) integers, or (B, *action_shape) within the bounds."""
    actions: npt.NDArray[Any]
    """The same in the policy's units: (B,) or (B, A) integers from 0, or (B, A), not clipped."""
    log_prob: FloatArray
    """(B,) log-probability (density) of `actions`."""
    dist_inputs: FloatArray
    """(B, num_dist_inputs) logits, masked where an action was not allowed, or means beside log
    standard deviations."""


class PolicyRunner:
    """A trained actor with all that stands between it and an environment.

    It keeps no state between calls, so one runner may serve many threads.

    Args:
        actor: used as it is, not copied.
        observation_shape: of one raw observation.
        action_spec: the action space.
        normalizer: the observation filter's statistics; None stands for no filter.
        hidden: entries of a flattened observation that the policy may not see.
    """

    def __init__(
        self,
        actor: Actor,
        observation_shape: tuple[int, ...],
        action_spec: ActionSpec,
        normalizer: ObservationNormalizer | None,
        hidden: tuple[int, ...] = (),
    ) -> None:
        self.actor = actor
        self.observation_shape = observation_shape
        self.action_spec = action_spec
        self.normalizer = normalizer
        self.hidden = hidden

    def act(
        self,
        observations: npt.ArrayLike,
        *,
        deterministic: bool,
        generator: torch.Generator | None = None,
        history: History | None = None,
        mask: npt.NDArray[np.bool_] | None = None,
    ) -> Actions:
        """Chooses an action for each observation.

        Args:
            observations: (B, *observation_shape) raw numbers, as the environment gives them.
            deterministic: Take the distribution's mode instead of a sample.
            generator: Source of the samples; None is torch's global one.
            history: The steps before, for an actor that reads them, its observations raw and
                flattened; the last ones are `observations`. None: these are first observations.
            mask: (B, num_dist_inputs) which actions are allowed, as `ActionSpec.read_mask` gives
                it. None: all are.

        Raises:
            ObservationError: if the shape differs, the batch is empty, a number is not finite, no
                action is allowed, or a text has no room in the prompt.
        """
        seen = self.reads(observations, history)
        with torch.no_grad():
            try:
                decided = self.actor.decide(seen).cpu()  # (B, num_dist_inputs)
            except ValueError as error:  # such as a prompt that is too long
                raise ObservationError(f"the policy cannot act: {one_line(error)}") from error
            dist_inputs = self._allowed(decided, mask)
            dist = distribution(self.action_spec, dist_inputs)
            actions = dist.mode() if deterministic else dist.sample(generator)
            log_prob = dist.log_prob(actions)  # (B,)
        return Actions(
            env_actions=self.action_spec.to_env(actions.numpy()),
            actions=actions.numpy(),
            log_prob=log_prob.numpy(),
            dist_inputs=dist_inputs.numpy(),
        )

    def _allowed(self, dist_inputs: Tensor, mask: npt.NDArray[np.bool_] | None) -> Tensor:
        """What an actor gave (B, D), masked where an action is not allowed.

        An actor may have masked some itself: a text need not offer as many actions as there can be.
        """
        spec = self.action_spec
        if mask is not None:
            if not spec.is_categorical or mask.shape != dist_inputs.shape:
                expected = tuple(dist_inputs.shape) if spec.is_categorical else "none"
                raise ObservationError(
                    f"the action mask has shape {mask.shape}; the actions of this policy need "
                    f"{expected}"
                )
            dist_inputs = dist_inputs.masked_fill(~torch.from_numpy(mask), MASKED)
        if spec.is_categorical:
            masked = dist_inputs.numpy() == np.float32(MASKED)  # a net that overflows has others
            if np.logical_and.reduceat(masked, spec.first_logits, axis=1).any():
                raise ObservationError(
                    "no action is allowed at an observation; allow at least one of each choice"
                )
        return dist_inputs

    def reads(self, observations: npt.ArrayLike, history: History | None = None) -> History:
        """What the actor reads: hidden entries are zero, and numbers are normalised.

        Args and errors are those of `act`.
        """
        return self._history(self._read(observations), history)

    def _history(self, obs: FloatArray, history: History | None) -> History:
        """What the actor reads: normalised observations, the current ones (B, O) at the end."""
        if history is None or self.actor.context_length == 1:
            return History.first_steps(obs, self.actor.context_length, self.action_spec)
        num_earlier = self.actor.context_length - 1
        earlier = np.asarray(history.obs, np.float32)[:, :-1]  # (B, K-1, O)
        fits = (
            earlier.shape == (len(obs), num_earlier, obs.shape[1])
            and np.shape(history.actions)[:2] == (len(obs), num_earlier)
            and np.shape(history.num_steps) == (len(obs),)
        )
        if not fits or not np.isfinite(earlier).all() or not np.isfinite(history.actions).all():
            raise ObservationError(
                f"the history does not hold {num_earlier} earlier steps: finite observations "
                f"({len(obs)}, {num_earlier}, {obs.shape[1]}), the actions taken at them, and for "
                f"each episode how many there are"
            )
        earlier = hide(earlier, self.hidden)
        if self.normalizer is not None:
            earlier = self.normalizer(earlier.reshape(-1, obs.shape[1])).reshape(earlier.shape)
        read = History(
            np.concatenate([earlier, obs[:, None]], axis=1),
            np.asarray(history.actions),
            np.asarray(history.num_steps),
        )
        if self.action_spec.is_categorical:
            return read._replace(actions=self._read_choices(read))
        return read._replace(actions=read.actions.astype(np.float32, copy=False))

    def _read_choices(self, history: History) -> npt.NDArray[np.int64]:
        """The actions (B, K-1, *row_shape) of a history, those before its episode 0."""
        spec = self.action_spec
        sizes = np.array(spec.sizes or spec.size)  # () or (A,)
        missing = history.missing.reshape(*history.missing.shape, *(1,) * len(spec.row_shape))
        actions = np.where(missing, 0, history.actions).astype(np.int64)
        wrong = (actions != history.actions) & ~missing
        if wrong.any() or actions.min() < 0 or (actions >= sizes).any():
            raise ObservationError(
                f"the history holds an action that is none of 0 to {(sizes - 1).tolist()}, as the "
                f"policy counts"
            )
        return actions

    def _read(self, observations: npt.ArrayLike) -> FloatArray:
        """Checked, flattened and normalised observations (B, O)."""
        obs = _as_float32(observations, self.observation_shape)
        if obs.shape[1:] != self.observation_shape or not len(obs):
            raise ObservationError(
                f"observations have shape {obs.shape}; expected "
                f"{_batch_shape(self.observation_shape)} with at least one row"
            )
        if not np.isfinite(obs).all():
            raise ObservationError(
                f"observations hold NaN or infinite numbers; expected finite float32 numbers of "
                f"shape {_batch_shape(self.observation_shape)}"
            )
        flat = hide(obs.reshape(len(obs), -1), self.hidden)
        return flat if self.normalizer is None else self.normalizer(flat)


class CriticRunner:
    """A trained critic with all that stands between it and an environment. It keeps no state.

    Args:
        critic: used as it is.
        context_length: K, steps that a value sees, its own included.
        normalizer: the observation filter's statistics; None stands for no filter.
        value_mean: of the value targets that the critic's output is relative to.
        value_std: their deviation.
        hidden: entries of a flattened observation that the critic may not see.
    """

    def __init__(
        self,
        critic: Critic,
        context_length: int,
        normalizer: ObservationNormalizer | None,
        value_mean: float,
        value_std: float,
        hidden: tuple[int, ...] = (),
    ) -> None:
        self.context_length = context_length
        self._critic, self._normalizer = critic, normalizer
        self._mean, self._std, self._hidden = value_mean, value_std, hidden

    @torch.no_grad()
    def values(self, history: History, timesteps: npt.NDArray[np.int64]) -> FloatArray:
        """Expected discounted returns (B,), in the units of the return that was learnt from.

        Args:
            history: of K observations, raw and flattened, and the actions between them.
            timesteps: (B,) env steps since the reset, at the last observation.
        """
        batch, length, _ = history.obs.shape
        obs = hide(np.ascontiguousarray(history.obs, np.float32), self._hidden)
        if self._normalizer is not None:
            obs = self._normalizer(obs.reshape(batch * length, -1)).reshape(obs.shape)
        chunks = Chunks.of_history(history._replace(obs=obs), timesteps)
        outputs = self._critic(chunks, 1)[:, 0].numpy()
        return np.asarray(self._mean + self._std * outputs, np.float32)


def critic_of(path: Path) -> CriticRunner:
    """The critic of a bundle that `load_bundle` has accepted.

    Raises:
        BundleError: if it cannot be read, or if its critic reads rewards, or the hidden states
            of a language model.
    """
    from rl_service.policies.bundle import read_critic

    critic, spec = read_critic(path)
    if critic.reads_rewards:
        raise BundleError(f"the critic of {path} reads rewards, so it cannot be asked alone")
    return CriticRunner(
        critic,
        spec.context_length,
        None if spec.observation_filter is None else spec.observation_filter.to_normalizer(),
        spec.value_mean,
        spec.value_std,
        spec.env.hide,
    )


def _as_float32(observations: npt.ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """Float32 as training sees it; too large a number becomes infinite, and is refused later."""
    try:
        raw = np.asarray(observations)
    except ValueError:  # rows of unequal length
        raw = np.asarray(None)
    if raw.dtype.kind not in "fiub" or raw.ndim == 0:
        raise ObservationError(
            f"observations are no array of numbers; expected shape {_batch_shape(shape)}"
        )
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(raw, dtype=np.float32)


def _batch_shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(['B', *map(str, shape)])})"
