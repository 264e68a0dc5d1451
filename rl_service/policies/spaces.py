"""Descriptions of all spaces: those of `simple_spaces`, text, and Dict and Tuple of these."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from custom_models.spaces import ACTION_MASK, FloatArray
from custom_models.text import brief
from custom_models.text_rows import read_row, text_row
from rl_service.common.errors import ObservationError
from rl_service.policies.simple_spaces import (
    BoxSpec,
    DiscreteSpec,
    MultiBinarySpec,
    MultiDiscreteSpec,
    SpaceSpec,
)

if TYPE_CHECKING:  # a policy that acts needs no environments
    import gymnasium as gym

_MAX_DEPTH, _MAX_PARTS, _MAX_CHARACTERS = 8, 1000, 2**20
_SAMPLED_CHARACTERS = 5

Name = Annotated[str, Field(max_length=100)]


class TextSpec(SpaceSpec):
    """A `gymnasium.spaces.Text` of any characters; see `custom_models.text_rows`."""

    type: Literal["Text"] = "Text"
    max_length: Annotated[int, Field(gt=0, le=_MAX_CHARACTERS)]
    brings_actions: bool = False
    """Whether each text comes with the actions to choose among, which differ from step to step."""

    @classmethod
    def from_space(cls, space: gym.spaces.Text) -> TextSpec:
        return cls(
            max_length=space.max_length, brings_actions=getattr(space, "brings_actions", False)
        )

    @property
    def size(self) -> int:
        return self.max_length

    @property
    def words(self) -> str:
        actions = ", with the actions to choose among" if self.brings_actions else ""
        return f"a text of up to {self.max_length} characters{actions}"

    def sample(self, rng: np.random.Generator) -> FloatArray:
        actions = ["a", "b"] if self.brings_actions else []
        room = self.max_length - 2 * len(actions)
        length = min(_SAMPLED_CHARACTERS, room)  # a prompt must have room for it
        text = "".join(rng.choice(list("abcdefgh"), max(0, length)))
        return self.flatten_with_actions(text, actions, "a sample")

    def flatten(self, value: Any, place: str = "observation") -> FloatArray:
        if not isinstance(value, str):
            kind = type(value).__name__
            raise ObservationError(f"{place}: expected a text, found {kind}; give a string")
        return self.flatten_with_actions(value, (), place)

    def flatten_with_actions(self, text: str, actions: Sequence[str], place: str) -> FloatArray:
        """A text, and the actions that are admissible at its step.

        Raises:
            ObservationError: if they are too long, or hold characters that a row cannot.
        """
        try:
            return text_row(text, actions, self.max_length)
        except ValueError as error:
            raise ObservationError(f"{place}: {error}") from error

    def unflatten(self, row: npt.NDArray[Any]) -> Any:
        text, actions = read_row(row.astype(np.float32))
        return {"text": text, "admissible_actions": actions} if actions else text


class _Nested(SpaceSpec):
    """A space of spaces."""

    @property
    @abstractmethod
    def parts(self) -> Iterable[SpaceSpec]:
        """In the order in which they are flattened."""

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def depth(self) -> int:
        return 1 + max(part.depth for part in self.parts)

    @property
    def is_number(self) -> npt.NDArray[np.bool_]:
        return np.concatenate([part.is_number for part in self.parts])

    def sample(self, rng: np.random.Generator) -> FloatArray:
        return np.concatenate([part.sample(rng) for part in self.parts])

    def unflatten_parts(self, row: npt.NDArray[Any]) -> list[Any]:
        """Each part as JSON has it."""
        ends = list(accumulate(part.size for part in self.parts))
        rows = zip(self.parts, np.split(row, ends[:-1]), strict=True)
        return [part.unflatten(each) for part, each in rows]

    @model_validator(mode="after")
    def _check_depth(self) -> _Nested:
        if self.depth > _MAX_DEPTH:
            raise ValueError(f"there are more than {_MAX_DEPTH} spaces within each other")
        return self


class DictSpec(_Nested):
    """A `gymnasium.spaces.Dict`."""

    type: Literal["Dict"] = "Dict"
    spaces: Annotated[dict[Name, Space], Field(min_length=1, max_length=_MAX_PARTS)]
    """In the order of the environment's, in which they are flattened."""

    @classmethod
    def from_space(cls, space: gym.spaces.Dict) -> DictSpec:
        return cls(spaces={str(name): space_spec(part) for name, part in space.spaces.items()})

    @property
    def parts(self) -> Iterable[SpaceSpec]:
        return self.spaces.values()

    @property
    def layout(self) -> Any:
        return [(name, part.layout) for name, part in self.spaces.items()]

    @property
    def words(self) -> str:
        inner = (f"{brief(name)}: {part.words}" for name, part in self.spaces.items())
        return f"an object of {{{'; '.join(inner)}}}"

    @property
    def _names(self) -> str:
        return ", ".join(map(brief, self.spaces))

    def flatten(self, value: Any, place: str = "observation") -> FloatArray:
        if not isinstance(value, Mapping):
            kind = type(value).__name__
            raise ObservationError(
                f"{place}: expected an object, found {kind}; give one with {self._names}"
            )
        if value.keys() != self.spaces.keys():
            wrong = min(self.spaces.keys() ^ value.keys(), key=str)
            what = "missing" if wrong in self.spaces else "unknown"
            raise ObservationError(
                f"{place}.{brief(wrong)}: it is {what}; give exactly {self._names}"
            )
        return np.concatenate(
            [part.flatten(value[k], f"{place}.{brief(k)}") for k, part in self.spaces.items()]
        )

    def unflatten(self, row: npt.NDArray[Any]) -> Any:
        return dict(zip(self.spaces, self.unflatten_parts(row), strict=True))


class TupleSpec(_Nested):
    """A `gymnasium.spaces.Tuple`."""

    type: Literal["Tuple"] = "Tuple"
    spaces: Annotated[tuple[Space, ...], Field(min_length=1, max_length=_MAX_PARTS)]

    @classmethod
    def from_space(cls, space: gym.spaces.Tuple) -> TupleSpec:
        return cls(spaces=tuple(space_spec(part) for part in space.spaces))

    @property
    def parts(self) -> Iterable[SpaceSpec]:
        return self.spaces

    @property
    def layout(self) -> Any:
        return [part.layout for part in self.spaces]

    @property
    def words(self) -> str:
        return f"a list of [{'; '.join(part.words for part in self.spaces)}]"

    def flatten(self, value: Any, place: str = "observation") -> FloatArray:
        if not isinstance(value, list | tuple) or len(value) != len(self.spaces):
            raise ObservationError(
                f"{place}: expected a list of {len(self.spaces)} parts, found "
                f"{type(value).__name__}; give one entry for each part"
            )
        parts = enumerate(zip(self.spaces, value, strict=True))
        return np.concatenate([part.flatten(each, f"{place}[{i}]") for i, (part, each) in parts])

    def unflatten(self, row: npt.NDArray[Any]) -> Any:
        return self.unflatten_parts(row)


_Action = BoxSpec | DiscreteSpec | MultiDiscreteSpec | MultiBinarySpec
ActionSpace = Annotated[_Action, Field(discriminator="type")]
Space = Annotated[_Action | TextSpec | DictSpec | TupleSpec, Field(discriminator="type")]
DictSpec.model_rebuild()
TupleSpec.model_rebuild()


def observed_part(space: Space) -> Space:
    """What a policy reads of an observation: all but its action mask."""
    if not isinstance(space, DictSpec):
        return space
    rest = {name: part for name, part in space.spaces.items() if name != ACTION_MASK}
    return space.model_copy(update={"spaces": rest})


def space_spec(space: gym.Space[Any]) -> Space:
    """The description of a space.

    Raises:
        TypeError: if there is none of that kind.
        ValidationError: if it is too large or too deep to describe.
    """
    import gymnasium as gym

    described: dict[type[gym.Space[Any]], Any] = {
        gym.spaces.Box: BoxSpec,
        gym.spaces.Discrete: DiscreteSpec,
        gym.spaces.MultiDiscrete: MultiDiscreteSpec,
        gym.spaces.MultiBinary: MultiBinarySpec,
        gym.spaces.Text: TextSpec,
        gym.spaces.Dict: DictSpec,
        gym.spaces.Tuple: TupleSpec,
    }
    for kind, spec in described.items():
        if isinstance(space, kind):
            return spec.from_space(space)  # type: ignore[no-any-return]
    raise TypeError(
        f"space {space} is not supported; use {', '.join(kind.__name__ for kind in described)}"
    )
