"""Descriptions of spaces of numbers and choices, as `policy.json` and replies hold them.

Strict and bounded, since a bundle may be a stranger's. JSON has no infinity: a bound that is None
stands for none. Flattening does what `gymnasium.spaces.flatten` does, without gymnasium.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import FailFast, Field, model_validator

from custom_models.kinds import Group, PositiveInt
from custom_models.spaces import ActionSpec, FloatArray
from rl_service.common.errors import ObservationError

if TYPE_CHECKING:  # a policy that acts needs no environments
    import gymnasium as gym

_MAX_CHOICES = 2**20
_SAMPLED_WITHIN = 10.0

Shape = Annotated[tuple[PositiveInt, ...], Field(max_length=8)]
Bounds = Annotated[tuple[float | None, ...], FailFast()]
Count = Annotated[int, Field(gt=0, le=_MAX_CHOICES)]
Start = Annotated[int, Field(ge=-(2**53), le=2**53)]
IntegerType = Literal["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


class SpaceSpec(Group):
    """What all kinds of spaces have."""

    @property
    @abstractmethod
    def size(self) -> int:
        """O, entries of a flattened observation."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one observation as `PolicyRunner.act` takes it."""
        return (self.size,)

    @property
    def layout(self) -> Any:
        """What two spaces have in common if an observation of one can be sent to the other."""
        return self

    @property
    def depth(self) -> int:
        """Spaces within each other, this one included."""
        return 1

    @property
    def is_number(self) -> npt.NDArray[np.bool_]:
        """(O,) which entries are numbers of a Box, and neither choices nor text."""
        return np.zeros(self.size, np.bool_)

    @property
    @abstractmethod
    def words(self) -> str:
        """What an observation or an action is, for people."""

    @abstractmethod
    def sample(self, rng: np.random.Generator) -> FloatArray:
        """Some flat observation (O,)."""

    @abstractmethod
    def flatten(self, value: Any, place: str = "observation") -> FloatArray:
        """An observation (O,), from what the environment or JSON gives.

        Args:
            value: numbers, lists, arrays, dictionaries, tuples or text.
            place: what a message calls it.

        Raises:
            ObservationError: if it is none of the space; the message names the part.
        """

    @abstractmethod
    def unflatten(self, row: npt.NDArray[Any]) -> Any:
        """An observation as JSON has it, from a flat one (O,)."""


class BoxSpec(SpaceSpec):
    """A `gymnasium.spaces.Box`, its bounds flattened. Integers are described as float32."""

    type: Literal["Box"] = "Box"
    shape: Shape
    low: Bounds
    high: Bounds
    dtype: Literal["float32", "float64"] = "float32"

    @classmethod
    def from_space(cls, space: gym.spaces.Box) -> BoxSpec:
        bounds = (b.reshape(-1).astype(np.float64).tolist() for b in (space.low, space.high))
        low, high = ([b if math.isfinite(b) else None for b in each] for each in bounds)
        dtype = "float64" if space.dtype == np.float64 else "float32"
        return cls.model_validate({"shape": space.shape, "low": low, "high": high, "dtype": dtype})

    def to_action_spec(self) -> ActionSpec:
        bounds = (
            [-math.inf if bound is None else bound for bound in self.low],
            [math.inf if bound is None else bound for bound in self.high],
        )
        low, high = (tuple(np.array(each, self.dtype).tolist()) for each in bounds)
        return ActionSpec("box", self.size, 0, self.shape, low, high, self.dtype)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def layout(self) -> Any:
        return self.shape  # bounds may have been widened since

    @property
    def is_number(self) -> npt.NDArray[np.bool_]:
        return np.ones(self.size, np.bool_)

    @property
    def words(self) -> str:
        bounds = set(zip(self.low, self.high, strict=True))
        within = f" within {_bounds_text(*bounds.pop())}" if len(bounds) == 1 else ""
        return f"{self.dtype} numbers of shape {list(self.shape)}{within}"

    def sample(self, rng: np.random.Generator) -> FloatArray:
        low = np.array([-math.inf if bound is None else bound for bound in self.low])
        high = np.array([math.inf if bound is None else bound for bound in self.high])
        # Bounds may be as wide as float32 itself (CartPole-v1); no observation is.
        near = (each.clip(-_SAMPLED_WITHIN, _SAMPLED_WITHIN) for each in (low, high))
        return rng.uniform(*near).clip(low, high).astype(np.float32)

    def flatten(self, value: Any, place: str = "observation") -> FloatArray:
        array = _array(value, self.shape, "fiub", "numbers", place)
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            row = array.astype(np.float32)
        wrong = ~np.isfinite(row)
        if wrong.any():
            raise ObservationError(f"{_first(wrong, place)}: not finite in float32; give a number")
        return row.reshape(-1)

    def unflatten(self, row: npt.NDArray[Any]) -> Any:
        return row.reshape(self.shape).tolist()

    @model_validator(mode="after")
    def _check_bounds(self) -> BoxSpec:
        if not len(self.low) == len(self.high) == self.size:
            raise ValueError(f"shape {self.shape} needs {self.size} lower and upper bounds")
        largest = float(np.finfo(self.dtype).max)
        for low, high in zip(self.low, self.high, strict=True):
            if max(abs(low or 0.0), abs(high or 0.0)) > largest:
                raise ValueError(f"{self.dtype} has no such bound as {low} or {high}")
            if low is not None and high is not None and low > high:
                raise ValueError(f"lower bound {low} is above upper bound {high}")
        return self


class DiscreteSpec(SpaceSpec):
    """A `gymnasium.spaces.Discrete`."""

    type: Literal["Discrete"] = "Discrete"
    n: Count
    start: Start = 0

    @classmethod
    def from_space(cls, space: gym.spaces.Discrete[Any]) -> DiscreteSpec:
        return cls(n=int(space.n), start=int(space.start))

    def to_action_spec(self) -> ActionSpec:
        return ActionSpec("discrete", self.n, start=self.start)

    @property
    def size(self) -> int:
        return self.n

    @property
    def words(self) -> str:
        return f"an integer from {self.start} to {self.start + self.n - 1}"

    def sample(self, rng: np.random.Generator) -> FloatArray:
        return _one_of_n(rng.integers([self.n]), [self.n])

    def flatten(self, value: Any, place: str = "observation") -> FloatArray:
        return _one_of_n(_choices(value, (), [self.start], [self.n], place), [self.n])

    def unflatten(self, row: npt.NDArray[Any]) -> Any:
        return self.start + int(row.argmax())


class MultiDiscreteSpec(SpaceSpec):
    """A `gymnasium.spaces.MultiDiscrete`, flattened."""

    type: Literal["MultiDiscrete"] = "MultiDiscrete"
    shape: Shape
    nvec: Annotated[tuple[Count, ...], FailFast()]
    start: Annotated[tuple[Start, ...], FailFast()]
    dtype: IntegerType = "int64"

    @classmethod
    def from_space(cls, space: gym.spaces.MultiDiscrete) -> MultiDiscreteSpec:
        nvec, start = (each.reshape(-1).tolist() for each in (space.nvec, space.start))
        given = {"shape": space.shape, "nvec": nvec, "start": start, "dtype": str(space.dtype)}
        return cls.model_validate(given)

    def to_action_spec(self) -> ActionSpec:
        size, nvec = len(self.nvec), self.nvec
        return ActionSpec("multi_discrete", size, 0, self.shape, self.start, (), self.dtype, nvec)

    @property
    def last(self) -> tuple[int, ...]:
        """The largest integer of each component, flattened."""
        return tuple(start + n - 1 for start, n in zip(self.start, self.nvec, strict=True))

    @property
    def size(self) -> int:
        return sum(self.nvec)

    @property
    def words(self) -> str:
        limits = {
            f"from {first} to {last}" for first, last in zip(self.start, self.last, strict=True)
        }
        within = f" {limits.pop()}" if len(limits) == 1 else ""
        return f"integers of shape {list(self.shape)}{within}"

    def sample(self, rng: np.random.Generator) -> FloatArray:
        return _one_of_n(rng.integers(self.nvec), self.nvec)

    def flatten(self, value: Any, place: str = "observation") -> FloatArray:
        return _one_of_n(_choices(value, self.shape, self.start, self.nvec, place), self.nvec)

    def unflatten(self, row: npt.NDArray[Any]) -> Any:
        parts = np.split(row, list(accumulate(self.nvec))[:-1])
        chosen = np.array(self.start) + [part.argmax() for part in parts]
        return chosen.reshape(self.shape).tolist()

    @model_validator(mode="after")
    def _check_sizes(self) -> MultiDiscreteSpec:
        if not len(self.nvec) == len(self.start) == math.prod(self.shape):
            raise ValueError(f"shape {self.shape} needs as many entries in nvec and start")
        return self


class MultiBinarySpec(SpaceSpec):
    """A `gymnasium.spaces.MultiBinary`."""

    type: Literal["MultiBinary"] = "MultiBinary"
    shape: Shape

    @classmethod
    def from_space(cls, space: gym.spaces.MultiBinary) -> MultiBinarySpec:
        return cls(shape=space.shape)

    def to_action_spec(self) -> ActionSpec:
        zeros, twos = (0,) * self.size, (2,) * self.size
        return ActionSpec("multi_discrete", self.size, 0, self.shape, zeros, (), "int8", twos)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def words(self) -> str:
        return f"zeros and ones of shape {list(self.shape)}"

    def sample(self, rng: np.random.Generator) -> FloatArray:
        return rng.integers(2, size=self.size).astype(np.float32)

    def flatten(self, value: Any, place: str = "observation") -> FloatArray:
        choices = _choices(value, self.shape, [0] * self.size, [2] * self.size, place)
        return choices.astype(np.float32)

    def unflatten(self, row: npt.NDArray[Any]) -> Any:
        return row.reshape(self.shape).astype(np.int64).tolist()

    @model_validator(mode="after")
    def _check_size(self) -> MultiBinarySpec:
        if self.size > _MAX_CHOICES:
            raise ValueError(f"shape {self.shape} has more than {_MAX_CHOICES:,} entries")
        return self


def _bounds_text(low: float | None, high: float | None) -> str:
    return f"[{'-∞' if low is None else low}, {'∞' if high is None else high}]"


def _array(
    value: Any, shape: tuple[int, ...], kinds: str, what: str, place: str
) -> npt.NDArray[Any]:
    """An array of a shape and of one of NumPy's kinds of numbers."""
    try:
        array = np.asarray(value)
    except ValueError:  # rows of unequal length
        array = np.asarray(None)
    if array.shape != shape or array.dtype.kind not in kinds:
        found = f"shape {list(array.shape)}" if array.dtype.kind in kinds else "something else"
        raise ObservationError(f"{place}: expected {what} of shape {list(shape)}, found {found}")
    return array


def _choices(
    value: Any, shape: tuple[int, ...], start: Sequence[int], nvec: Sequence[int], place: str
) -> npt.NDArray[np.int64]:
    """(A,) integers from 0, each below its entry in nvec."""
    array = _array(value, shape, "iub", "integers", place)
    choices: npt.NDArray[np.int64] = array.astype(np.int64).reshape(-1) - np.array(start)
    wrong = (choices < 0) | (choices >= nvec)
    if wrong.any():
        i = int(wrong.argmax())
        raise ObservationError(
            f"{_first(wrong.reshape(shape), place)}: expected an integer from {start[i]} to "
            f"{start[i] + nvec[i] - 1}, found {start[i] + choices[i]}"
        )
    return choices


def _one_of_n(choices: npt.NDArray[np.int64], nvec: Sequence[int]) -> FloatArray:
    """A 1 in as many entries as there are choices, for the one that is taken."""
    row = np.zeros(sum(nvec), np.float32)
    row[choices + list(accumulate(nvec[:-1], initial=0))] = 1.0
    return row


def _first(wrong: npt.NDArray[np.bool_], place: str) -> str:
    """The place of the first entry that is wrong."""
    return place + "".join(f"[{i}]" for i in np.argwhere(wrong)[0])
