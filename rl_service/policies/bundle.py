"""Policy bundles: a trained policy as a folder of `policy.json`, `policy.safetensors`, `card.md`.

Nothing in a bundle is code or a path, and nothing in it is believed: the JSON is read with a strict
schema, the weights must have the digest, names and shapes that it implies, and the policy must
reproduce recorded outputs. So training and serving cannot drift apart.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import gymnasium as gym
import safetensors
import safetensors.torch
import torch
from pydantic import BaseModel, JsonValue, ValidationError
from torch import Tensor

from custom_models.actor import Actor
from custom_models.configs import GPT2CriticSettings, LLMPolicyConfig, ModelConfig
from custom_models.critic import Critic
from custom_models.model_store import find_model, fingerprint
from custom_models.nets import ActorCritic, build_actor, build_critic
from rl_service.config.settings import EnvSettings
from rl_service.config.text import one_line
from rl_service.errors import BundleError
from rl_service.normalization import ObservationNormalizer
from rl_service.policies.card import model_card
from rl_service.policies.files import CARD_FILE, SPEC_FILE, WEIGHTS_FILE
from rl_service.policies.parity import PARITY_TOLERANCE, parity_error, record_parity
from rl_service.policies.replace import replacing_folder
from rl_service.policies.runner import PolicyRunner
from rl_service.policies.spec import (
    FORMAT,
    FORMAT_VERSION,
    BaseModelSpec,
    BoxSpec,
    FilterSpec,
    Header,
    PolicySpec,
    action_mapping,
    space_spec,
)

MAX_SPEC_BYTES = 16 * 2**20
_ACTOR, _CRITIC = "actor.", "critic."
Schema = TypeVar("Schema", bound=BaseModel)


class BundledPolicy(PolicyRunner):
    """A policy read from a bundle; `spec` is what its `policy.json` says."""

    def __init__(self, actor: Actor, spec: PolicySpec) -> None:
        filter_spec = spec.observation_filter
        super().__init__(
            actor,
            spec.observation_space.shape,
            spec.action_spec,
            None if filter_spec is None else filter_spec.to_normalizer(),
        )
        self.spec = spec


def write_bundle(
    path: Path,
    *,
    net: ActorCritic,
    observation_space: gym.spaces.Box,
    action_space: gym.Space[Any],
    env: EnvSettings,
    normalizer: ObservationNormalizer | None,
    value_mean: float,
    value_std: float,
    evaluation: dict[str, JsonValue],
    provenance: dict[str, JsonValue],
) -> Path:
    """Writes a trained policy, replacing the bundle at `path` as a whole.

    Args:
        path: Folder of the bundle.
        net: Actor and critic; both are saved, the actor alone acts.
        observation_space: Of the raw observation, before the filter.
        action_space: Of the environment.
        env: The environment that it was trained in.
        normalizer: The observation filter's statistics; None stands for no filter.
        value_mean: Mean of the value targets that the critic's output is relative to.
        value_std: Their deviation, above 0.
        evaluation: Scores, as JSON.
        provenance: Where it comes from (run, iteration, versions, …), as JSON.

    Raises:
        BundleError: if a weight or a statistic is not finite.
        OutputError: if the folder cannot be written; an earlier bundle there stays whole.
    """
    weights = safetensors.torch.save(_whole_weights(net))
    runner = PolicyRunner(net.actor, observation_space.shape, net.action_spec, normalizer)
    actions = space_spec(action_space)
    try:
        spec = PolicySpec(
            env=env,
            observation_space=BoxSpec.from_space(observation_space),
            action_space=actions,
            action_mapping=action_mapping(actions),
            model=net.config,
            base_model=_base_model(net.config),
            context_length=net.config.num_context_steps + 1,
            observation_filter=normalizer and FilterSpec.from_normalizer(normalizer),
            value_mean=value_mean,
            value_std=value_std,
            weights_sha256=hashlib.sha256(weights).hexdigest(),
            parity=record_parity(runner, observation_space),
            evaluation=evaluation,
            provenance=provenance,
        )
    except ValidationError as error:
        raise BundleError(f"cannot write bundle {path}: {_first_problem(error)}") from error
    with replacing_folder(path) as folder:
        (folder / WEIGHTS_FILE).write_bytes(weights)
        (folder / SPEC_FILE).write_text(spec.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (folder / CARD_FILE).write_text(model_card(spec), encoding="utf-8")
    return path


def load_bundle(path: str | Path) -> BundledPolicy:
    """Reads a bundle and proves that it acts as it did when it was written.

    A language model then acts on a GPU, if this process sees one; small nets stay on the CPU.

    Raises:
        BundleError: if a file is missing, truncated, foreign or edited, if a weight is not
            finite, or if the policy does not reproduce its recorded outputs to 1e-5.
    """
    path = Path(path)
    if not path.is_dir():
        raise BundleError(f"{path} is no policy bundle: no such folder; give one with {SPEC_FILE}")
    spec = _read_spec(path / SPEC_FILE)
    weights = _read_weights(path / WEIGHTS_FILE, spec)
    own = {k.removeprefix(_ACTOR): v for k, v in weights.items() if k.startswith(_ACTOR)}
    policy = BundledPolicy(_fit_actor(path / WEIGHTS_FILE, own, spec), spec)
    _check_parity(policy, path)
    if isinstance(spec.model, LLMPolicyConfig) and torch.cuda.is_available():
        policy.actor.cuda()
    return policy


def read_critic(path: Path) -> tuple[Critic, PolicySpec]:
    """The critic that trained a bundle's policy, and what the bundle says.

    Raises:
        BundleError: as `load_bundle`, or if the critic reads the hidden states of a language
            model, which the bundle does not hold.
    """
    spec = _read_spec(path / SPEC_FILE)
    if isinstance(spec.model, LLMPolicyConfig) and spec.model.critic == "hidden_state":
        raise BundleError(f"the critic of {path} reads hidden states, so it cannot be asked alone")
    weights = _read_weights(path / WEIGHTS_FILE, spec)
    own = {k.removeprefix(_CRITIC): v for k, v in weights.items() if k.startswith(_CRITIC)}
    sizes = spec.model, spec.observation_space.size, spec.action_spec, 0
    gpt2 = spec.model.gpt2_critic if isinstance(spec.model, LLMPolicyConfig) else spec.model
    try:
        if isinstance(gpt2, GPT2CriticSettings) and gpt2.n_layer > len(weights):
            raise ValueError("fewer weights than layers")
        with torch.device("meta"):  # as for the actor: shapes before memory
            build_critic(*sizes).load_state_dict(own, assign=True)
        critic = build_critic(*sizes)
        critic.load_state_dict(own)
    except (RuntimeError, ValueError, OSError) as error:
        raise BundleError(f"{path} has another critic than {SPEC_FILE} describes") from error
    return critic.requires_grad_(False).eval(), spec


def _base_model(config: ModelConfig) -> BaseModelSpec | None:
    name = config.base_model
    return None if name is None else BaseModelSpec(name=name, sha256=fingerprint(find_model(name)))


def _whole_weights(net: ActorCritic) -> dict[str, Tensor]:
    """Copies of the net's own weights on the CPU, each with its own memory as safetensors asks."""
    weights = {name: value.cpu().clone() for name, value in net.own_state().items()}
    broken = _not_finite(weights)
    if broken is not None:
        raise BundleError(f"cannot write a bundle: weight {broken} holds NaN or infinite numbers")
    return {name: value.contiguous() for name, value in weights.items()}


def _not_finite(weights: dict[str, Tensor]) -> str | None:
    """Name of the first tensor with a NaN or infinite entry."""
    return next((name for name, value in weights.items() if not value.isfinite().all()), None)


def _read_spec(path: Path) -> PolicySpec:
    text = _read_bytes(path, MAX_SPEC_BYTES)
    header = _parse(Header, text, path)
    if header.format_version != FORMAT_VERSION:
        raise BundleError(
            f"{path} has format version {header.format_version} and this rl-service reads "
            f"{FORMAT_VERSION}; install the rl-service that wrote it"
        )
    return _parse(PolicySpec, text, path)


def _parse(schema: type[Schema], text: bytes, path: Path) -> Schema:
    try:
        return schema.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise BundleError(
            f"{path} is no {FORMAT} file: {_first_problem(error)}; copy the bundle again"
        ) from error


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in problem["loc"])
    return one_line(f"{where}: {problem['msg']}" if where else problem["msg"])


def _read_bytes(path: Path, max_bytes: int | None = None) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(-1 if max_bytes is None else max_bytes + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise BundleError(
            f"{path} cannot be read: {reason}; a bundle is a folder with {SPEC_FILE} and "
            f"{WEIGHTS_FILE}"
        ) from error
    if max_bytes is not None and len(content) > max_bytes:
        raise BundleError(f"{path} is larger than {max_bytes} bytes; that is no {SPEC_FILE}")
    return content


def _read_weights(path: Path, spec: PolicySpec) -> dict[str, Tensor]:
    """The weights that belong to the description, all finite."""
    content = _read_bytes(path)
    if hashlib.sha256(content).hexdigest() != spec.weights_sha256:
        raise BundleError(
            f"{path} is truncated or belongs to another bundle (its sha256 is not the one in "
            f"{SPEC_FILE}); copy the bundle again"
        )
    try:
        weights = safetensors.torch.load(content)
        broken = _not_finite(weights)
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise BundleError(
            f"{path} is no safetensors file of a policy: {one_line(error)}; copy the bundle again"
        ) from error
    if broken is not None:
        raise BundleError(f"{path}: weight {broken} holds NaN or infinite numbers")
    return weights


def _fit_actor(path: Path, weights: dict[str, Tensor], spec: PolicySpec) -> Actor:
    """An actor of the described size with the given weights, both compared before any use."""
    _check_base_model(path.parent, spec)
    expected = {name: _layout(value) for name, value in _outline(path, spec, weights).items()}
    found = {name: _layout(value) for name, value in weights.items()}
    if expected != found:
        name = min(n for n in expected.keys() | found.keys() if expected.get(n) != found.get(n))
        raise BundleError(
            f"{path} does not fit {SPEC_FILE}: {_ACTOR}{name} is {found.get(name, 'missing')}, "
            f"expected {expected.get(name, 'no such weight')}"
        )
    actor = build_actor(spec.model, spec.observation_space.size, spec.action_spec)
    actor.load_state_dict(weights, strict=not isinstance(spec.model, LLMPolicyConfig))
    return actor.requires_grad_(False).eval()


def _outline(path: Path, spec: PolicySpec, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights that the described actor has of its own, as shapes without memory."""
    model = spec.model
    on_base_model = False
    if isinstance(model, LLMPolicyConfig):
        on_base_model = model.pretrained is not None and not model.random_weights
        if on_base_model:
            model = model.model_copy(update={"random_weights": True})
        elif model.pretrained is None and model.n_layer > len(weights):
            raise BundleError(f"{path} has fewer weights than {SPEC_FILE} describes layers")
    try:
        with torch.device("meta"):
            actor = build_actor(model, spec.observation_space.size, spec.action_spec)
    except (RuntimeError, ValueError, OSError) as error:  # a size that torch cannot count, …
        raise BundleError(f"{path.parent} describes a net that cannot be built") from error
    return actor.trainable_state() if on_base_model else actor.own_state()


def _check_base_model(path: Path, spec: PolicySpec) -> None:
    """The bundle holds what differs from its base model; the rest must be that very model."""
    needed = spec.base_model
    if needed is None:
        return
    try:
        folder = find_model(needed.name)
    except FileNotFoundError as error:
        raise BundleError(f"{path} needs the base model {needed.name}: {error}") from error
    if fingerprint(folder) != needed.sha256:
        raise BundleError(
            f"{path} was trained on another base model than the {needed.name} in {folder}: its "
            f"sha256 is not {needed.sha256[:12]}…; get the one that it was trained on"
        )


def _layout(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _check_parity(policy: BundledPolicy, path: Path) -> None:
    error = parity_error(policy, policy.spec.parity)
    if not error <= PARITY_TOLERANCE:
        raise BundleError(
            f"{path} fails its parity check: recorded outputs differ by {error:.1e} "
            f"(allowed {PARITY_TOLERANCE:.0e}); the bundle was edited, export the policy again"
        )
