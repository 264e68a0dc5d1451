"""What every actor and every critic is: what they read, and what they answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from custom_models.history import History
from custom_models.spaces import FloatArray


class Actor(nn.Module):
    """A policy's net in two parts; an update runs only the second.

    `encode` turns what was seen at a step into the *input*, from which `forward` computes the
    action distribution. No gradient passes through `encode`. The inputs of an actor that
    `reads_chunks` are `Chunks`: an update then runs over whole sequences, each step once.
    """

    context_length: int = 1
    """K: observations that it reads, the current one included."""
    num_inputs: int | None = None
    """Entries of a step's input; None if it is made of what each row holds anyway."""
    reads_chunks: bool = False
    """Whether its inputs are `Chunks`, each of which holds K-1 steps of context first. It may read
    neither rewards nor time steps, which are zero when it acts."""
    feature_size: int = 0
    """Width of `features`; 0 if the actor has none."""
    repeats_its_work: bool = True
    """Whether `forward` does the same operations for all inputs of a shape, whatever their values,
    so that a GPU may record them."""
    autocast_dtype: torch.dtype | None = None
    """What the matrix products of a language model compute in, on a GPU; None: its weights' own
    type. Small nets always compute in float32."""

    @property
    def has_low_precision(self) -> bool:
        """Whether `forward` computes in `autocast_dtype`, and so not as rollout workers do."""
        return False

    @property
    def reads_as_before(self) -> bool:
        """Whether it reads the same as actors of earlier releases, whose checkpoints do not say."""
        return True

    @abstractmethod
    def encode(self, history: History) -> Any:
        """Inputs (B, I) of B steps, or chunks (B, K), on the device of the weights."""

    @abstractmethod
    def forward(self, inputs: Any) -> Tensor:
        """`dist_inputs`: (B, D) from inputs (B, I), or (B, T-K+1, D) from chunks (B, T)."""

    def decide(self, history: History) -> Tensor:
        """`dist_inputs` (B, D) of B steps."""
        return self(self.encode(history)).flatten(0, -2)  # type: ignore[no-any-return]

    def prompts(self, history: History) -> list[str] | None:
        """The texts that it reads at B steps; None if it reads numbers.

        What a tokenizer puts before every text is not part of them.
        """
        return None

    def open_cache(self) -> ActingCache | None:
        """What acts faster while the weights stay as they are; None if there is no such thing.

        It makes no inputs, so it is for actors whose `num_inputs` is None. An actor may also keep
        to itself what holds until its weights change.
        """
        return None

    def features(self, inputs: Tensor) -> Tensor:
        """Features (B, feature_size) of the actor that a critic may read, without a gradient."""
        raise NotImplementedError

    def trainable_state(self) -> dict[str, Tensor]:
        """The weights that learning changes: all that rollout workers need."""
        return {name: p.detach() for name, p in self.named_parameters() if p.requires_grad}

    def own_state(self) -> dict[str, Tensor]:
        """The weights that differ from those of a fresh actor, which are what to save."""
        return {name: p.detach() for name, p in self.named_parameters()}

    def load(self, weights: dict[str, Tensor]) -> None:
        """Loads weights from `trainable_state` or `own_state`.

        Raises:
            RuntimeError: if they belong to another net.
        """
        if weights.keys() not in (self.trainable_state().keys(), self.own_state().keys()):
            raise RuntimeError("the actor's weights have other names than the given ones")
        self.load_state_dict(weights, strict=False)

    def load_arrays(self, weights: Mapping[str, FloatArray]) -> None:
        """The same from arrays, which are not written: those of Ray's object store may not be."""
        self.load({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})


class ActingCache(ABC):
    """Acts for E envs step by step, and keeps what it computed; for one set of weights."""

    @abstractmethod
    def decide(self, history: History) -> FloatArray:
        """`dist_inputs` (B, D) of the next step, as the actor's own `decide`.

        Args:
            history: of all E envs, always in the same order; or of some of them, which is slow.
                The first call is for all.
        """


PADDING_SEGMENT = -1
"""Segment id of padding rows, which no step ever sees."""


class Chunks(NamedTuple):
    """B chunks of T consecutive steps; the first steps of each serve as context.

    Steps of one chunk may belong to several episodes: a step sees only steps with its own
    segment id, never later ones, and never padding.
    """

    obs: Tensor
    """(B, T, O) float, as the actor sees them."""
    actions: Tensor
    """(B, T) integers or (B, T, A) floats. The last step's own action is never seen."""
    rewards: Tensor
    """(B, T) the reward after each action, scaled as for learning. The last one is never seen."""
    timesteps: Tensor
    """(B, T) steps since the episode's reset."""
    segment_ids: Tensor
    """(B, T) one id per unbroken stretch of an episode, `PADDING_SEGMENT` for padding."""

    @classmethod
    def of_history(cls, history: History, timesteps: npt.NDArray[np.int64]) -> Chunks:
        """The K steps of B histories, on the CPU; rewards are not known and zero.

        Args:
            history: of B episodes.
            timesteps: (B,) env steps since the reset, at the last observation.
        """
        batch, length = history.obs.shape[:2]
        segment_ids = np.zeros((batch, length), np.int64)
        segment_ids[:, :-1][history.missing] = PADDING_SEGMENT
        unseen = np.zeros_like(history.actions, shape=(batch, 1, *history.actions.shape[2:]))
        return cls(
            obs=torch.from_numpy(history.obs),
            actions=torch.from_numpy(np.concatenate([history.actions, unseen], axis=1)),
            rewards=torch.zeros(batch, length),
            timesteps=torch.from_numpy((timesteps[:, None] + np.arange(1 - length, 1)).clip(0)),
            segment_ids=torch.from_numpy(segment_ids),
        )


class Critic(nn.Module):
    """Maps chunks to the (normalised) values of their last steps."""

    reads_rewards: bool = False
    """Whether it reads `Chunks.rewards`, which are not known where a policy is served."""
    steps_per_value: int = 1
    """Steps that each further value passes over, which is what memory grows with."""

    @abstractmethod
    def forward(self, chunks: Chunks, num_values: int) -> Tensor:
        """Values (B, num_values) of the last `num_values` steps of each chunk."""
