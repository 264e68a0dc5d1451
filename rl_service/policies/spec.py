"""The schema of `policy.json`: strict, so that a foreign or edited file is refused, not guessed at.

Every field is bounded, and so is what the file takes to read: it may be a stranger's.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, FailFast, Field, ValidationError, model_validator

from custom_models.configs import StrangersModelField
from custom_models.kinds import UNKNOWN_KIND, Group
from custom_models.model_config import ContextLength, ModelConfig, ModelName
from custom_models.spaces import ActionSpec
from custom_models.text import brief
from rl_service.common.errors import BundleError
from rl_service.config.settings import EnvSettings
from rl_service.policies.bundle_files import (
    FORMAT,
    MAX_NUMBERS,
    MAX_SPEC_BYTES,
    SPEC_FILE,
    check_amount,
    open_file,
    read_errors,
)
from rl_service.policies.simple_spaces import BoxSpec
from rl_service.policies.spaces import ActionSpace, Space, observed_part
from rl_service.rollout.filters import ObservationNormalizer

FORMAT_VERSION: Final = 3
_MAX_WEIGHTS_BYTES = 9 * 2**30
"""A base model of up to 8 GiB, and what is beside it."""
_WEIGHTS_HEADER_BYTES = 2**20
_TOO_MANY_WEIGHTS = f"the net has more than {_MAX_WEIGHTS_BYTES / 2**30:.0f} GiB of weights"
_MAX_PARITY_ROWS = 16
_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)

Float32 = Annotated[float, Field(ge=-_LARGEST_FLOAT32, le=_LARGEST_FLOAT32)]
PositiveFloat32 = Annotated[float, Field(ge=1e-30, le=_LARGEST_FLOAT32)]
Row = Annotated[tuple[Float32, ...], FailFast()]
Rows = Annotated[tuple[Row, ...], Field(max_length=_MAX_PARITY_ROWS)]
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Fact = float | Int64 | bool | Annotated[str, Field(max_length=1000)] | None
Facts = Annotated[dict[Annotated[str, Field(max_length=100)], Fact], Field(max_length=100)]
"""Scores, versions and the like."""
Schema = TypeVar("Schema", bound=BaseModel)


class Header(BaseModel):
    """What every version of the format has, read before anything else."""

    format: Literal["rl-service-policy"]
    format_version: Annotated[int, Field(ge=1, lt=10**6)]


class FilterSpec(Group):
    """Statistics of the observation filter: `clip((obs - mean) / std, -clip, clip)`."""

    mean: Row
    std: Annotated[tuple[PositiveFloat32, ...], FailFast()]
    clip: PositiveFloat32

    @classmethod
    def from_normalizer(cls, normalizer: ObservationNormalizer) -> FilterSpec:
        return cls(
            mean=tuple(normalizer.mean.tolist()),
            std=tuple(normalizer.std.tolist()),
            clip=normalizer.clip,
        )

    def to_normalizer(self) -> ObservationNormalizer:
        return ObservationNormalizer(np.array(self.mean), np.array(self.std), self.clip)


class HistorySpec(Group):
    """The K-1 steps before each recorded observation, oldest first."""

    observations: Rows
    """Raw and flattened, (N, (K-1) O)."""
    actions: Rows
    """In the policy's units, (N, K-1) or (N, (K-1) A)."""
    num_steps: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...], Field(max_length=_MAX_PARITY_ROWS)
    ]
    """(N,) how many of them there are: the last ones."""


class ParitySpec(Group):
    """Recorded pairs that a loaded policy must reproduce."""

    observations: Annotated[Rows, Field(min_length=1)]
    """Raw and flattened, (N, O)."""
    history: HistorySpec | None = None
    """None for an actor that reads the current observation alone."""
    dist_inputs: Annotated[Rows, Field(min_length=1)]
    """(N, num_dist_inputs)"""


class BaseModelSpec(Group):
    """A language model that the bundle's weights are to be put into, or whose tokenizer it uses."""

    name: Annotated[ModelName, Field(min_length=1)]
    """Of its folder, for people; the model is found by its fingerprint."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Its fingerprint."""


class PolicySpec(Group):
    """All that `policy.json` says."""

    format: Literal["rl-service-policy"] = FORMAT
    format_version: Literal[1, 2, 3] = FORMAT_VERSION
    env: EnvSettings
    observation_space: Space
    """The environment's own, its action mask included."""
    action_space: ActionSpace
    action_mapping: Literal["offset", "clip_and_scale"]
    """From policy to env actions. `offset`: add `start`. `clip_and_scale`: -1 and 1 are the
    bounds; what lies outside is clipped (an unbounded dimension is passed on as it is)."""
    model: StrangersModelField
    base_model: BaseModelSpec | None = None
    context_length: ContextLength
    """Steps of the episode that the critic read in training."""
    observation_filter: FilterSpec | None
    value_mean: Float32
    value_std: PositiveFloat32
    """Value = `value_mean` + `value_std` * the critic's output."""
    weights_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Digest of `policy.safetensors`: half a file, or that of another policy, is noticed."""
    parity: ParitySpec
    evaluation: Facts
    provenance: Facts

    @model_validator(mode="after")
    def _trained_without_masks(self) -> PolicySpec:
        """As policies of earlier releases were."""
        if self.format_version < 3:
            self.__dict__["env"] = self.env.model_copy(update={"action_masks": False})
        return self

    @property
    def observed_space(self) -> Space:
        """What the policy reads: the observation without its action mask."""
        return observed_part(self.observation_space)

    @property
    def action_spec(self) -> ActionSpec:
        return self.action_space.to_action_spec()

    @property
    def max_weights_bytes(self) -> int:
        """Size of `policy.safetensors`, at most."""
        sizes = self.observed_space.size, self.action_spec.num_dist_inputs
        return _weights_bytes(self.model, *sizes)

    @model_validator(mode="after")
    def _check_agreement(self) -> PolicySpec:
        """Each part was read on its own; here they must fit each other."""
        num_inputs, num_outputs = self.observed_space.size, self.action_spec.num_dist_inputs
        if num_inputs == 0:
            raise ValueError("observation_space is nothing but an action mask")
        if not self.env.id.isprintable() or len(self.env.id) > 200:
            raise ValueError("env.id is no name of an environment")
        if self.max_weights_bytes > _MAX_WEIGHTS_BYTES:
            raise ValueError(_TOO_MANY_WEIGHTS)
        if self.action_mapping != action_mapping(self.action_space):
            raise ValueError(f"action_mapping {self.action_mapping} does not fit the action space")
        if self.context_length != self.model.num_context_steps + 1:
            raise ValueError(f"context_length {self.context_length} does not fit the model")
        if self.model.base_model != (self.base_model and self.base_model.name):
            raise ValueError(f"base_model does not fit the model's {self.model.base_model}")
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
        actions = self.action_spec
        width = math.prod(actions.row_shape)
        _check_rows("parity.history.observations", history.observations, earlier * num_inputs)
        _check_rows("parity.history.actions", history.actions, earlier * width)
        counts = {len(history.observations), len(history.actions), len(history.num_steps)}
        if counts != {len(self.parity.observations)} or max(history.num_steps) > earlier:
            raise ValueError("parity.history does not fit its observations")
        if actions.is_categorical:
            taken = np.array(history.actions).reshape(-1, width)
            sizes = np.array(actions.sizes or actions.size)
            if not ((taken >= 0) & (taken < sizes) & (taken == np.floor(taken))).all():
                raise ValueError("parity.history.actions holds no such action")


def read_spec(folder: Path) -> PolicySpec:
    """What the `policy.json` of a bundle says.

    Raises:
        BundleError: if there is none, or it is foreign, edited or of another format version.
    """
    if not folder.is_dir():
        raise BundleError(
            f"{folder} is no policy bundle: no such folder; give one with {SPEC_FILE}"
        )
    path = folder / SPEC_FILE
    with read_errors(path), open_file(path, MAX_SPEC_BYTES) as file:
        text = file.read(MAX_SPEC_BYTES)
    check_amount(text, path)
    header = _parse(Header, text, path)
    if header.format_version > FORMAT_VERSION:
        raise BundleError(
            f"{path} has format version {header.format_version} and this rl-service reads up to "
            f"{FORMAT_VERSION}; install the rl-service that wrote it"
        )
    return _parse(PolicySpec, text, path)


def problems_of_bundles(model: ModelConfig, num_inputs: int, num_outputs: int) -> list[str]:
    """Why no bundle can hold a policy, one line each.

    Args:
        model: the net.
        num_inputs: entries of an observation.
        num_outputs: of the actor.
    """
    problems = []
    if _weights_bytes(model, num_inputs, num_outputs) > _MAX_WEIGHTS_BYTES:
        problems.append(f"{_TOO_MANY_WEIGHTS}, which no bundle holds; take a smaller net")
    # One recorded sample at least, the space's bounds and the filter.
    if (model.acting_context_length + 4) * num_inputs > MAX_NUMBERS:
        problems.append(
            f"observations of {num_inputs:,} numbers, {model.acting_context_length} at a time, are "
            f"more than a bundle can describe; make them smaller in a wrapper"
        )
    return problems


def _weights_bytes(model: ModelConfig, num_inputs: int, num_outputs: int) -> int:
    return 4 * model.max_weights(num_inputs, num_outputs) + _WEIGHTS_HEADER_BYTES


def _parse(schema: type[Schema], text: bytes, path: Path) -> Schema:
    try:
        return schema.model_validate_json(text, strict=True)
    except ValidationError as error:
        if error.errors()[0]["type"] == UNKNOWN_KIND:  # which is no damage
            raise BundleError(f"{path} cannot be read: {first_problem(error)}") from error
        raise BundleError(
            f"{path} is no {FORMAT} file: {first_problem(error)}; copy the bundle again"
        ) from error


def first_problem(error: ValidationError) -> str:
    """The first thing that is wrong with a description, in one line."""
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, problem["loc"]))
    return brief(f"{where}: {problem['msg']}" if where else problem["msg"])


def action_mapping(space: Space) -> Literal["offset", "clip_and_scale"]:
    """How policy actions become env actions in a space."""
    return "clip_and_scale" if isinstance(space, BoxSpec) else "offset"


def _check_rows(name: str, rows: Any, width: int) -> None:
    for row in rows:
        if len(row) != width:
            raise ValueError(f"{name} has {len(row)} numbers a row; the policy needs {width}")
