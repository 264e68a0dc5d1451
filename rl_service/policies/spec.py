"""The schema of `policy.json`: strict, so that a foreign or edited file is refused, not guessed at.

JSON has no infinity: a bound that is None stands for none.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Final, Literal

import gymnasium as gym
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from custom_models.configs import ModelConfig
from custom_models.spaces import ActionSpec
from rl_service.config.group import PositiveFloat, PositiveInt
from rl_service.config.settings import EnvSettings
from rl_service.normalization import ObservationNormalizer

FORMAT: Final = "rl-service-policy"
FORMAT_VERSION: Final = 1

Shape = tuple[PositiveInt, ...]
Row = tuple[float, ...]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Header(BaseModel):
    """What every version of the format has, read before anything else."""

    format: Literal["rl-service-policy"]
    format_version: int


class BoxSpec(_Strict):
    """A `gymnasium.spaces.Box`, its bounds flattened."""

    type: Literal["Box"] = "Box"
    shape: Shape
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]
    dtype: Literal["float32", "float64"] = "float32"

    @classmethod
    def from_space(cls, space: gym.spaces.Box) -> BoxSpec:
        return cls.model_validate(
            {
                "shape": space.shape,
                "low": [_bound(value) for value in space.low.reshape(-1).tolist()],
                "high": [_bound(value) for value in space.high.reshape(-1).tolist()],
                "dtype": str(space.dtype),
            }
        )

    def to_space(self) -> gym.spaces.Box:
        low = [-math.inf if bound is None else bound for bound in self.low]
        high = [math.inf if bound is None else bound for bound in self.high]
        dtype = np.dtype(self.dtype)
        return gym.spaces.Box(
            np.array(low, dtype).reshape(self.shape),
            np.array(high, dtype).reshape(self.shape),
            dtype=dtype.type,
        )

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @model_validator(mode="after")
    def _check_bounds(self) -> BoxSpec:
        if not len(self.low) == len(self.high) == self.size:
            raise ValueError(f"shape {self.shape} needs {self.size} lower and upper bounds")
        for low, high in zip(self.low, self.high, strict=True):
            if low is not None and high is not None and low > high:
                raise ValueError(f"lower bound {low} is above upper bound {high}")
        return self


class DiscreteSpec(_Strict):
    """A `gymnasium.spaces.Discrete`."""

    type: Literal["Discrete"] = "Discrete"
    n: PositiveInt
    start: int = 0

    @classmethod
    def from_space(cls, space: gym.spaces.Discrete[Any]) -> DiscreteSpec:
        return cls(n=int(space.n), start=int(space.start))

    def to_space(self) -> gym.spaces.Discrete[Any]:
        return gym.spaces.Discrete(self.n, start=self.start)


class FilterSpec(_Strict):
    """Statistics of the observation filter: `clip((obs - mean) / std, -clip, clip)`."""

    mean: Row
    std: tuple[PositiveFloat, ...]
    clip: PositiveFloat

    @classmethod
    def from_normalizer(cls, normalizer: ObservationNormalizer) -> FilterSpec:
        return cls(
            mean=tuple(normalizer.mean.tolist()),
            std=tuple(normalizer.std.tolist()),
            clip=normalizer.clip,
        )

    def to_normalizer(self) -> ObservationNormalizer:
        return ObservationNormalizer(np.array(self.mean), np.array(self.std), self.clip)


class HistorySpec(_Strict):
    """The K-1 steps before each recorded observation, oldest first."""

    observations: tuple[Row, ...]
    """Raw and flattened, (N, (K-1) O)."""
    actions: tuple[Row, ...]
    """In the policy's units, (N, K-1) or (N, (K-1) A)."""
    num_steps: tuple[Annotated[int, Field(ge=0)], ...]
    """(N,) how many of them there are: the last ones."""


class ParitySpec(_Strict):
    """Recorded pairs that a loaded policy must reproduce."""

    observations: Annotated[tuple[Row, ...], Field(min_length=1)]
    """Raw and flattened, (N, O)."""
    history: HistorySpec | None = None
    """None for an actor that reads the current observation alone."""
    dist_inputs: Annotated[tuple[Row, ...], Field(min_length=1)]
    """(N, num_dist_inputs)"""


class BaseModelSpec(_Strict):
    """A language model that the bundle's weights are to be put into, or whose tokenizer it uses."""

    name: Annotated[str, Field(min_length=1)]
    """As the run's settings gave it: that of a fetched model, or a folder."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Its fingerprint: another model under the same name is refused."""


class PolicySpec(_Strict):
    """All that `policy.json` says."""

    format: Literal["rl-service-policy"] = FORMAT
    format_version: Literal[1] = FORMAT_VERSION
    env: EnvSettings
    observation_space: BoxSpec
    action_space: Annotated[BoxSpec | DiscreteSpec, Field(discriminator="type")]
    action_mapping: Literal["offset", "clip_and_scale"]
    """From policy to env actions. `offset`: add `start`. `clip_and_scale`: -1 and 1 are the
    bounds; what lies outside is clipped (an unbounded dimension is passed on as it is)."""
    model: ModelConfig
    base_model: BaseModelSpec | None = None
    context_length: PositiveInt
    """Steps of the episode that the critic read in training."""
    observation_filter: FilterSpec | None
    value_mean: float
    value_std: PositiveFloat
    """Value = `value_mean` + `value_std` * the critic's output."""
    weights_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Digest of `policy.safetensors`: half a file, or that of another policy, is noticed."""
    parity: ParitySpec
    evaluation: dict[str, JsonValue]
    provenance: dict[str, JsonValue]

    @property
    def action_spec(self) -> ActionSpec:
        return ActionSpec.from_space(self.action_space.to_space())

    @model_validator(mode="after")
    def _check_agreement(self) -> PolicySpec:
        """Each part was read on its own; here they must fit each other."""
        num_inputs, num_outputs = self.observation_space.size, self.action_spec.num_dist_inputs
        if self.action_mapping != action_mapping(self.action_space):
            raise ValueError(f"action_mapping {self.action_mapping} does not fit the action space")
        if self.context_length != self.model.num_context_steps + 1:
            raise ValueError(f"context_length {self.context_length} does not fit the model")
        if self.model.base_model != (self.base_model and self.base_model.name):
            raise ValueError(
                f"base_model does not fit the model, which needs {self.model.base_model}"
            )
        if self.observation_filter is not None:
            _check_rows("observation_filter.mean", [self.observation_filter.mean], num_inputs)
            _check_rows("observation_filter.std", [self.observation_filter.std], num_inputs)
        _check_rows("parity.observations", self.parity.observations, num_inputs)
        _check_rows("parity.dist_inputs", self.parity.dist_inputs, num_outputs)
        if len(self.parity.observations) != len(self.parity.dist_inputs):
            raise ValueError("parity has not as many observations as dist_inputs")
        self._check_history(self.model.acting_context_length - 1, num_inputs)
        return self

    def _check_history(self, earlier: int, num_inputs: int) -> None:
        history = self.parity.history
        if (history is None) != (earlier == 0):
            raise ValueError(f"parity.history does not fit a model that reads {earlier} steps back")
        if history is None:
            return
        width = 1 if isinstance(self.action_space, DiscreteSpec) else self.action_space.size
        _check_rows("parity.history.observations", history.observations, earlier * num_inputs)
        _check_rows("parity.history.actions", history.actions, earlier * width)
        counts = {len(history.observations), len(history.actions), len(history.num_steps)}
        if counts != {len(self.parity.observations)} or max(history.num_steps) > earlier:
            raise ValueError("parity.history does not fit its observations")
        if isinstance(self.action_space, DiscreteSpec):
            known = range(self.action_space.n)
            if any(action not in known for row in history.actions for action in row):
                raise ValueError("parity.history.actions holds no such action")


def action_mapping(space: BoxSpec | DiscreteSpec) -> Literal["offset", "clip_and_scale"]:
    """How policy actions become env actions in a space."""
    return "offset" if isinstance(space, DiscreteSpec) else "clip_and_scale"


def space_spec(space: gym.Space[Any]) -> BoxSpec | DiscreteSpec:
    """The description of an action space.

    Raises:
        TypeError: if it is neither Discrete nor a Box.
    """
    if isinstance(space, gym.spaces.Discrete):
        return DiscreteSpec.from_space(space)
    if isinstance(space, gym.spaces.Box):
        return BoxSpec.from_space(space)
    raise TypeError(f"action space {space} is not supported; use Discrete or a Box of floats")


def _bound(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _check_rows(name: str, rows: Any, width: int) -> None:
    for row in rows:
        if len(row) != width:
            raise ValueError(f"{name} has {len(row)} numbers a row; the policy needs {width}")
