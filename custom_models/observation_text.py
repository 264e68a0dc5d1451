"""Writes observations and actions as text, straight to tokens.

A prompt is a row of pieces: the whole part of a number, its decimals, an action. There are a few
hundred of them, so each is tokenised once, behind a text like the one that it will follow, and
writing a batch of observations is a look-up. The tokens are those of the whole text: a tokenizer
for which they are not is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from custom_models.configs import LLMPolicyConfig
from custom_models.history import History
from custom_models.spaces import ActionSpec, FloatArray

PADDING = -1
"""Stands left of a shorter prompt's tokens."""
NUMBER_LIMIT = 10
"""Numbers are clipped to ±10, as the observation filter does."""
STEP_END = "\n"
"""Follows each earlier step."""
ARROW = " ->"
"""Stands between an earlier observation and its action."""
_DIGIT = "0"
"""Stands for whatever number comes before a piece."""
_HEADS = [f"{sign}{i}" for sign in ("", "-") for i in range(NUMBER_LIMIT + 1)]
"""What stands before a number's point."""
_NUM_CHECKED = 64
"""Prompts that are tokenised whole, to compare."""

CUE = "\nAction:"
"""Follows the current observation, and is followed by an action."""

Tokens = npt.NDArray[np.int32]
Index = npt.NDArray[np.int64]


class PromptWriter:
    """Turns histories into prompts.

    A prompt is, for each earlier step, its observation, an arrow, its action and a new line; then
    the current observation, and a cue if actions are scored by their text. It begins with what the
    tokenizer puts before every text, a BOS token for some. The task is not part of it: see
    `task_tokens`.

    Args:
        tokenizer: a tokenizer of transformers.
        observation_size: O.
        action_spec: the actions.
        config: how a prompt is written.

    Raises:
        ValueError: if the tokenizer cannot write numbers or distinguish actions, or joins pieces.
    """

    def __init__(
        self,
        tokenizer: Any,
        observation_size: int,
        action_spec: ActionSpec,
        config: LLMPolicyConfig,
    ) -> None:
        self._tokenizer = tokenizer
        self._action_spec = action_spec
        self.context_length = config.context_length
        self.before = config.task
        """Text that all prompts begin with."""
        self.decimals = decimals = config.decimals
        self.separator = separator = config.separator
        self._cue = cue = CUE if config.action_scoring == "tokens" else ""
        self._scale = 10**decimals
        self.action_names = config.action_names or tuple(map(str, range(action_spec.size)))
        self._check_texts()
        self._added = put_in_front(tokenizer)
        self._rows: list[list[int]] = [[]]  # the first one is for what is missing
        self.task_tokens: list[int] = []
        """What all prompts begin with: the task, behind what the tokenizer adds; none without."""
        self._start_heads = self._add(self._starts(config.task))
        self._next_heads = self._add(self._after(STEP_END, _HEADS))
        self._later_heads = self._add(self._after(_DIGIT, [separator + head for head in _HEADS]))
        points = [f".{i:0{decimals}d}" for i in range(self._scale)] if decimals else [""]
        self._decimals = self._add(self._after(_DIGIT, points))
        self._actions = self._add(self._after(_DIGIT, self._action_texts()))
        self._ends = self._add(self._after(_DIGIT, [STEP_END, cue]))
        self.action_tokens: list[list[int]] = []
        """Of each discrete action's text, as a continuation of the cue; none without it."""
        if cue:
            self.action_tokens = self._after(cue, [f" {name}" for name in self.action_names])
        self.max_action_tokens = max(map(len, self.action_tokens), default=0)
        self._lengths = np.array([len(row) for row in self._rows])
        self._firsts = self._lengths.cumsum() - self._lengths
        self._tokens = np.array([token for row in self._rows for token in row], np.int32)
        self.max_tokens = self._count_most(observation_size)
        """Of any prompt, the task's not counted."""
        self._check_pieces(config.task, observation_size)

    def _read(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text, without those that the tokenizer adds."""
        rows: list[list[int]] = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return rows

    def _add(self, rows: list[list[int]]) -> int:
        """Where these rows begin among all."""
        self._rows += rows
        return len(self._rows) - len(rows)

    def _starts(self, task: str) -> list[list[int]]:
        """Of the numbers that a prompt begins with; what a task makes them share is cut off."""
        rows = [self._added + row for row in self._read([task + head for head in _HEADS])]
        if task:
            columns = zip(*rows, strict=False)
            self.task_tokens = [c[0] for c in takewhile(lambda c: len(set(c)) == 1, columns)]
        return [row[len(self.task_tokens) :] for row in rows]

    def _after(self, before: str, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text where it follows `before`."""
        known, *rows = self._read([before, *(before + text for text in texts)])
        for text, row in zip(texts, rows, strict=True):
            if row[: len(known)] != known:
                raise ValueError(_joins(before + text))
        return [row[len(known) :] for row in rows]

    def _action_texts(self) -> list[str]:
        """What follows an earlier observation: all of a discrete action, or where a vector begins.

        The end of the step is a part of it where a tokenizer may join it to a name.
        """
        if self._action_spec.kind == "discrete":
            return [f"{ARROW} {name}{STEP_END}" for name in self.action_names]
        return [ARROW + self.separator + head for head in _HEADS]

    def _most(self, first: int, count: int = len(_HEADS)) -> int:
        """Tokens of the longest of these rows."""
        return max(map(len, self._rows[first : first + count]))

    def _count_most(self, observation_size: int) -> int:
        point = self._most(self._decimals, self._scale)
        later = self._most(self._later_heads) + point
        end, cue = (len(self._rows[self._ends + i]) for i in range(2))
        if self._action_spec.kind == "discrete":
            action = self._most(self._actions, len(self.action_names))
        else:
            first = self._most(self._actions) + point
            action = first + (self._action_spec.size - 1) * later + end
        rest, earlier = point + (observation_size - 1) * later, self.context_length - 1
        start, following = self._most(self._start_heads), self._most(self._next_heads)
        return start + earlier * following + self.context_length * rest + earlier * action + cue

    def _check_texts(self) -> None:
        """Refuses a tokenizer that has not what it takes to write numbers and actions."""
        numbers = np.array([-1.25, 0.0, NUMBER_LIMIT], np.float32)
        text = self._vector_text(numbers)
        written = str(self._tokenizer.decode(self._read([text])[0]))
        try:
            found = [float(part) for part in written.split(self.separator.strip() or None)]
        except ValueError:
            found = []
        if len(found) != 3 or not np.allclose(found, self.rounded(numbers), rtol=0, atol=1e-6):
            raise ValueError(
                f"the tokenizer writes the numbers {text!r} as {written!r}: it cannot write "
                f"observations; use another tokenizer or model.separator"
            )
        if self._action_spec.kind == "discrete":
            check_names(self.action_names, self._read([f" {name}" for name in self.action_names]))

    def reads_pieces_apart(self, task: str) -> bool:
        """Whether a prompt's tokens are those of its pieces alone, as earlier releases had them."""
        number, action = self._vector_text(np.array([0.25], np.float32)), f" {self.action_names[0]}"
        if self._action_spec.kind == "box":
            action = self.separator + number
        parts = [task, number, self.separator + number, ARROW, action, STEP_END, number, self._cue]
        apart = [token for row in self._read(parts) for token in row]
        return apart == self._added + self._read(["".join(parts)])[0]

    def _check_pieces(self, task: str, observation_size: int) -> None:
        """Refuses a tokenizer that reads a whole prompt otherwise than its pieces."""
        history = self._random_history(observation_size)
        ends = [f" {name}" for name in self.action_names] if self._cue else [""]
        texts = self.texts(history)
        read = self._read([task + text + ends[i % len(ends)] for i, text in enumerate(texts)])
        scored = self.action_tokens or [[]]
        for i, (prompt, whole) in enumerate(zip(self.prompts(history), read, strict=True)):
            pieces = [*self.task_tokens, *prompt[prompt != PADDING].tolist()]
            if pieces + scored[i % len(ends)] != self._added + whole:
                raise ValueError(_joins(texts[i]))

    def _random_history(self, observation_size: int) -> History:
        """Histories of all lengths up to 3 with all actions, of short vectors."""
        rng, spec = np.random.default_rng(0), self._action_spec
        count, length = max(_NUM_CHECKED, spec.size), min(self.context_length, 3)
        shape = (count, length, min(observation_size, 4))
        sizes = 10.0 ** rng.integers(-2, 2, shape)
        if spec.kind == "discrete":
            actions: Any = np.arange(count)[:, None].repeat(length - 1, 1) % spec.size
        else:
            actions = rng.normal(size=(count, length - 1, spec.size))
        return History(
            (sizes * rng.normal(size=shape)).astype(np.float32), actions, np.arange(count) % length
        )

    def rounded(self, numbers: FloatArray) -> FloatArray:
        """The numbers that a reader of their text reads, same shape."""
        rounded: FloatArray = self._in_units(numbers).astype(np.float32)
        return rounded / np.float32(self._scale)

    def _in_units(self, numbers: npt.NDArray[Any]) -> Index:
        """Integers: the numbers in units of their last decimal."""
        if not np.isfinite(numbers).all():
            raise ValueError("NaN and infinite numbers cannot be written as text")
        limited = np.clip(numbers.astype(np.float64), -NUMBER_LIMIT, NUMBER_LIMIT)
        units: Index = np.rint(limited * self._scale).astype(np.int64)
        return units

    def prompts(self, history: History) -> Tokens:
        """Token ids of B prompts, (B, T), `PADDING` on the left of those that are shorter."""
        pieces = self._pieces(history)  # (B, P)
        lengths = self._lengths[pieces]
        counts = lengths.sum(1)  # (B,)
        width, flat = int(counts.max()), lengths.reshape(-1)
        # Each piece's tokens lie in a row; `starts` is where, less what stands before it here.
        starts = self._firsts[pieces].reshape(-1) - (flat.cumsum() - flat)
        out = np.full((len(pieces), width), PADDING, np.int32)
        there = np.arange(width) >= (width - counts)[:, None]
        out[there] = self._tokens[np.repeat(starts, flat) + np.arange(flat.sum())]
        return out

    def _pieces(self, history: History) -> Index:
        """(B, P) rows of the pieces in order; those of a missing step are empty."""
        earlier = history.obs.shape[1] - 1
        parts: list[Index] = []
        for step in range(earlier + 1):
            back = earlier - step
            is_first = back == history.num_steps  # (B,)
            heads = np.where(is_first, self._start_heads, self._next_heads)
            own = [self._vectors(history.obs[:, step], heads)]
            if back:
                own.append(self._acted(history.actions[:, step]))
            there = (back <= history.num_steps)[:, None]
            parts += [np.where(there, part, 0) for part in own]
        cue = np.full((len(history.obs), 1), self._ends + 1)
        return np.concatenate([*parts, cue], axis=1)

    def _vectors(self, vectors: npt.NDArray[Any], first: int | Index) -> Index:
        """Pieces (B, 2 N) of vectors (B, N), whose first numbers begin with the heads `first`."""
        units = self._in_units(vectors)
        heads = np.full_like(units, self._later_heads)
        heads[:, 0] = first
        heads += np.abs(units) // self._scale + (units < 0) * (NUMBER_LIMIT + 1)
        points = self._decimals + np.abs(units) % self._scale
        return np.stack([heads, points], axis=-1).reshape(len(units), -1)

    def _acted(self, actions: npt.NDArray[Any]) -> Index:
        """Pieces (B, P) of an arrow, actions and the end of their step."""
        if self._action_spec.kind == "discrete":
            return self._actions + actions.astype(np.int64)[:, None]
        pieces = self._vectors(actions, self._actions)
        return np.pad(pieces, ((0, 0), (0, 1)), constant_values=self._ends)

    def texts(self, history: History) -> list[str]:
        """B prompts as text, without the task."""
        return [self._text(*row) for row in zip(*history, strict=True)]

    def _text(self, obs: FloatArray, actions: npt.NDArray[Any], num_steps: np.int64) -> str:
        first = len(actions) - int(num_steps)
        steps = [
            self._vector_text(obs[t]) + self._action_text(actions[t])
            for t in range(first, len(actions))
        ]
        return "".join([*steps, self._vector_text(obs[-1]), self._cue])

    def _vector_text(self, vector: FloatArray) -> str:
        return self.separator.join(f"{x:.{self.decimals}f}" for x in self.rounded(vector).tolist())

    def _action_text(self, action: Any) -> str:
        if self._action_spec.kind == "discrete":
            return self._action_texts()[int(action)]
        return ARROW + self.separator + self._vector_text(action) + STEP_END


def put_in_front(tokenizer: Any) -> list[int]:
    """The tokens that a tokenizer puts before every text: BOS for some."""
    [digit], whole = tokenizer(_DIGIT, add_special_tokens=False)["input_ids"][:1], tokenizer(_DIGIT)
    added: list[int] = whole["input_ids"][: whole["input_ids"].index(digit)]
    return added


def check_names(names: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Refuses names of actions whose tokens (one row a name) are alike or none."""
    seen: dict[tuple[int, ...], str] = {(): ""}
    for name, row in zip(names, rows, strict=True):
        alike = seen.setdefault(tuple(row), name)
        if alike != name:
            raise ValueError(
                f"the tokenizer writes the actions {alike!r} and {name!r} alike; use another "
                f"tokenizer or other model.action_names"
            )


def _joins(text: str) -> str:
    return (
        f"the tokenizer joins numbers, separators or actions in {text!r}, so that they cannot be "
        f"tokenised one by one; use another tokenizer or model.separator"
    )
