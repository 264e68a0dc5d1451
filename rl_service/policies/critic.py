"""The critic of a bundle: what a policy expects of an episode from here on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from custom_models.critic import PADDING_SEGMENT, Chunks, Critic
from custom_models.history import History
from custom_models.spaces import FloatArray
from rl_service.common.errors import BundleError
from rl_service.rollout.filters import ObservationNormalizer


class CriticRunner:
    """A trained critic with all that stands between it and an environment. It keeps no state.

    Args:
        critic: used as it is.
        context_length: K, steps that a value sees, its own included.
        normalizer: the observation filter's statistics; None stands for no filter.
        value_mean: of the value targets that the critic's output is relative to.
        value_std: their deviation.
    """

    def __init__(
        self,
        critic: Critic,
        context_length: int,
        normalizer: ObservationNormalizer | None,
        value_mean: float,
        value_std: float,
    ) -> None:
        self.context_length = context_length
        self._critic, self._normalizer = critic, normalizer
        self._mean, self._std = value_mean, value_std

    @torch.no_grad()
    def values(self, history: History, timesteps: npt.NDArray[np.int64]) -> FloatArray:
        """Expected discounted returns (B,), in the units of the return that was learnt from.

        Args:
            history: of K observations, raw and flattened, and the actions between them.
            timesteps: (B,) env steps since the reset, at the last observation.
        """
        batch, length, _ = history.obs.shape
        obs = np.ascontiguousarray(history.obs, np.float32)
        if self._normalizer is not None:
            obs = self._normalizer(obs.reshape(batch * length, -1)).reshape(obs.shape)
        back = np.arange(1 - length, 1)  # (K,)
        there = -back <= history.num_steps[:, None]  # (B, K)
        unseen = np.zeros_like(history.actions, shape=(batch, 1, *history.actions.shape[2:]))
        chunks = Chunks(
            obs=torch.from_numpy(obs),
            actions=torch.from_numpy(np.concatenate([history.actions, unseen], axis=1)),
            rewards=torch.zeros(batch, length),
            timesteps=torch.from_numpy((timesteps[:, None] + back).clip(0)),
            segment_ids=torch.from_numpy(np.where(there, 0, PADDING_SEGMENT)),
        )
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
    )
