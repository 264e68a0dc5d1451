"""Writes observations and actions as text, straight to tokens.

A number of d decimals within ±limit is one of a few thousand texts, so each is tokenised once, and
writing a batch of observations is a look-up. A prompt is the concatenation of its pieces' tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from custom_models.history import History
from custom_models.spaces import ActionSpec, FloatArray

PADDING = -1
"""Stands left of a shorter prompt's tokens."""
NUMBER_LIMIT = 10.0
"""Numbers are clipped to ±10, as the observation filter does."""
STEP_END = "\n"
"""Follows each earlier step."""

Tokens = npt.NDArray[np.int32]


class _Texts(NamedTuple):
    """Tokens of several texts, filled up on the right."""

    tokens: Tokens
    """(N, L)"""
    lengths: npt.NDArray[np.int64]
    """(N,)"""

    @classmethod
    def of(cls, texts: Sequence[str], tokenizer: Any) -> _Texts:
        rows = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        lengths = np.array([len(row) for row in rows], np.int64)
        tokens = np.zeros((len(rows), max(1, int(lengths.max()))), np.int32)
        tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.concatenate(rows)
        return cls(tokens, lengths)

    def pick(self, index: npt.NDArray[np.int64]) -> _Texts:
        """(..., L) tokens and (...,) lengths of the chosen texts."""
        return _Texts(self.tokens[index], self.lengths[index])


class PromptWriter:
    """Turns histories into prompts.

    A prompt is, for each earlier step, its observation, an arrow, its action and a new line; then
    the current observation, and `cue`. A `task` is no part of it: see `task_tokens`.

    Args:
        tokenizer: a tokenizer of transformers.
        observation_size: O.
        action_spec: the actions.
        context_length: K, observations in a prompt.
        decimals: of each number.
        separator: between the numbers of a vector.
        task: what the prompt is to begin with, once for all.
        action_names: what discrete actions are called; their numbers if none are given.
        cue: follows the current observation.

    Raises:
        ValueError: if the tokenizer has no way to write numbers.
    """

    def __init__(
        self,
        tokenizer: Any,
        observation_size: int,
        action_spec: ActionSpec,
        *,
        context_length: int,
        decimals: int,
        separator: str,
        task: str = "",
        action_names: Sequence[str] = (),
        cue: str = "",
    ) -> None:
        self._tokenizer = tokenizer
        self._action_spec = action_spec
        self.context_length = context_length
        self.decimals = decimals
        self.separator = separator
        self._scale = 10**decimals
        self._largest = round(NUMBER_LIMIT * self._scale)
        numbers = [
            f"{i / self._scale:.{decimals}f}" for i in range(-self._largest, self._largest + 1)
        ]
        self._first_numbers = _Texts.of(numbers, tokenizer)
        self._later_numbers = _Texts.of([separator + number for number in numbers], tokenizer)
        self.action_names = tuple(action_names or map(str, range(action_spec.size)))
        self._arrow = _Texts.of([" ->"], tokenizer)
        self._actions = _Texts.of([f" {name}" for name in self.action_names], tokenizer)
        self._step_end = _Texts.of([STEP_END], tokenizer)
        self._cue = _Texts.of([cue], tokenizer) if cue else None
        self.task_tokens: list[int] = (
            tokenizer(task, add_special_tokens=False)["input_ids"] if task else []
        )
        self.max_tokens = self._count_most(observation_size)
        """Of any prompt, the task's not counted."""
        self._check()

    def _count_most(self, observation_size: int) -> int:
        first, number = (
            int(texts.lengths.max()) for texts in (self._first_numbers, self._later_numbers)
        )
        vector = first + (observation_size - 1) * number
        if self._action_spec.kind == "discrete":
            action = int(self._actions.lengths.max())
        else:
            action = number * self._action_spec.size
        step = int(self._arrow.lengths[0] + self._step_end.lengths[0]) + action
        cue = 0 if self._cue is None else int(self._cue.lengths[0])
        earlier = self.context_length - 1
        return self.context_length * vector + earlier * step + cue

    def _check(self) -> None:
        probe = np.array([[-1.25, 0.0, NUMBER_LIMIT]], np.float32)
        written = self.text(self._pieces_of_vectors(probe))[0]
        expected = self.rounded(probe)[0].tolist()
        try:
            found = [float(part) for part in written.split(self.separator.strip() or None)]
        except ValueError:
            found = []
        if len(found) != len(expected) or not np.allclose(found, expected, rtol=0, atol=1e-6):
            raise ValueError(
                f"the tokenizer writes the numbers {expected} as {written!r}: it cannot write "
                f"observations; use another tokenizer or separator"
            )

    def rounded(self, numbers: FloatArray) -> FloatArray:
        """The numbers that a reader of their text reads, same shape."""
        rounded: FloatArray = (self._index(numbers) - self._largest).astype(np.float32)
        return rounded / np.float32(self._scale)

    def _index(self, numbers: FloatArray) -> npt.NDArray[np.int64]:
        if not np.isfinite(numbers).all():
            raise ValueError("NaN and infinite numbers cannot be written as text")
        limited = np.clip(numbers.astype(np.float64), -NUMBER_LIMIT, NUMBER_LIMIT)
        index: npt.NDArray[np.int64] = np.rint(limited * self._scale + self._largest).astype(
            np.int64
        )
        return index

    def prompts(self, history: History) -> Tokens:
        """Token ids of B prompts, (B, T), `PADDING` on the left of those that are shorter."""
        return _right_aligned(self._pieces(history))

    def _pieces(self, history: History) -> list[_Texts]:
        """(B, P, L) tokens and (B, P) lengths of pieces in order; a missing step has length 0."""
        obs, batch = history.obs, len(history.obs)
        earlier = obs.shape[1] - 1
        pieces: list[_Texts] = []
        for step in range(earlier):
            own = [
                *self._pieces_of_vectors(obs[:, step]),
                _repeated(self._arrow, batch),
                *self._pieces_of_actions(history.actions[:, step]),
                _repeated(self._step_end, batch),
            ]
            there = (earlier - step <= history.num_steps)[:, None]
            pieces += [piece._replace(lengths=piece.lengths * there) for piece in own]
        pieces += self._pieces_of_vectors(obs[:, -1])
        return pieces if self._cue is None else [*pieces, _repeated(self._cue, batch)]

    def _pieces_of_vectors(self, vectors: FloatArray, *, spaced: bool = False) -> list[_Texts]:
        """Pieces of vectors (B, N), the first number's separator only if `spaced`."""
        index = self._index(vectors)
        if spaced:
            return [self._later_numbers.pick(index)]
        first, later = index[:, :1], index[:, 1:]
        return [self._first_numbers.pick(first), self._later_numbers.pick(later)]

    def _pieces_of_actions(self, actions: npt.NDArray[Any]) -> list[_Texts]:
        if self._action_spec.kind == "discrete":
            return [self._actions.pick(actions.astype(np.int64)[:, None])]
        return self._pieces_of_vectors(actions, spaced=True)

    def text(self, pieces: list[_Texts]) -> list[str]:
        """What pieces say."""
        rows = _right_aligned(pieces)
        return [str(self._tokenizer.decode(row[row != PADDING].tolist())) for row in rows]

    def texts(self, history: History) -> list[str]:
        """B prompts as text, for people."""
        return self.text(self._pieces(history))

    def action_tokens(self) -> list[list[int]]:
        """Tokens of each discrete action's text, as a continuation of the prompt."""
        rows = zip(self._actions.tokens, self._actions.lengths, strict=True)
        return [tokens[:length].tolist() for tokens, length in rows]


def _repeated(text: _Texts, batch: int) -> _Texts:
    """One text as a piece of each of B prompts."""
    return text.pick(np.zeros((batch, 1), np.int64))


def _right_aligned(pieces: list[_Texts]) -> Tokens:
    """(B, T) concatenation of each row's pieces."""
    used = [np.arange(p.tokens.shape[-1]) < p.lengths[..., None] for p in pieces]  # (B, P, L)
    mask = np.concatenate([u.reshape(len(u), -1) for u in used], axis=1)  # (B, all)
    tokens = np.concatenate([p.tokens.reshape(len(p.tokens), -1) for p in pieces], axis=1)
    counts = mask.sum(1)
    width = int(counts.max())
    rows, _ = np.nonzero(mask)
    places = (mask.cumsum(1) - 1 + (width - counts)[:, None])[mask]
    out = np.full((len(mask), width), PADDING, np.int32)
    out[rows, places] = tokens[mask]
    return out
