"""Policy bundles: a trained policy as a folder of `policy.json`, `policy.safetensors`, `card.md`.

Nothing in a bundle is code or a path, and nothing in it is believed: the JSON is read with a strict
schema, the weights must have the digest, names and shapes that it implies, and the policy must
reproduce recorded outputs. So training and serving cannot drift apart.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
import torch
from pydantic import ValidationError
from torch import Tensor

from custom_models.base_models import find_by_fingerprint, find_model, fingerprint
from custom_models.interfaces import Actor, Critic
from custom_models.model_config import ModelConfig
from custom_models.nets import ActorCritic
from custom_models.text import brief
from rl_service.common.errors import BundleError
from rl_service.common.files import replacing_folder
from rl_service.config.settings import EnvSettings
from rl_service.policies.bundle_files import (
    CARD_FILE,
    SPEC_FILE,
    WEIGHTS_FILE,
    check_amount,
    open_file,
    read_errors,
)
from rl_service.policies.card import model_card
from rl_service.policies.observing import ObservationReader
from rl_service.policies.parity import PARITY_TOLERANCE, parity_error, record_parity
from rl_service.policies.runner import PolicyRunner
from rl_service.policies.spaces import observed_part, space_spec
from rl_service.policies.spec import (
    BaseModelSpec,
    Facts,
    FilterSpec,
    PolicySpec,
    action_mapping,
    first_problem,
    read_spec,
)
from rl_service.rollout.filters import ObservationNormalizer

if TYPE_CHECKING:  # a policy that acts needs no environments
    import gymnasium as gym

_ACTOR, _CRITIC = "actor.", "critic."


class BundledPolicy(PolicyRunner):
    """A policy read from a bundle; `spec` is what its `policy.json` says."""

    def __init__(self, actor: Actor, spec: PolicySpec) -> None:
        filter_spec = spec.observation_filter
        super().__init__(
            actor,
            spec.observed_space.row_shape,
            spec.action_spec,
            None if filter_spec is None else filter_spec.to_normalizer(),
            spec.env.hide,
        )
        self.spec = spec
        self.reader = ObservationReader(
            spec.observation_space, self.action_spec, uses_masks=spec.env.action_masks
        )
        """Makes rows and masks of what the environment gives."""


def write_bundle(
    path: Path,
    *,
    net: ActorCritic,
    spaces: tuple[gym.Space[Any], gym.Space[Any]],
    env: EnvSettings,
    normalizer: ObservationNormalizer | None,
    value_scale: tuple[float, float],
    evaluation: Facts,
    provenance: Facts,
) -> Path:
    """Writes a trained policy, replacing the bundle at `path` as a whole.

    Args:
        path: Folder of the bundle.
        net: Actor and critic; both are saved, the actor alone acts.
        spaces: Of the environment's observations, before any is flattened or filtered, and of its
            actions.
        env: The environment that it was trained in.
        normalizer: The observation filter's statistics; None stands for no filter.
        value_scale: Mean and deviation, above 0, of the value targets that the critic's output is
            relative to.
        evaluation: Scores, as JSON.
        provenance: Where it comes from (run, iteration, versions, …), as JSON.

    Raises:
        BundleError: if a weight or a statistic is not finite.
        OutputError: if the folder cannot be written; an earlier bundle there stays whole.
    """
    weights = safetensors.torch.save(_whole_weights(net))
    model, base_model = _named_base_model(net.whole_config)
    try:
        observations, actions = map(space_spec, spaces)
        observed = observed_part(observations)
        runner = PolicyRunner(net.actor, observed.row_shape, net.action_spec, normalizer, env.hide)
        spec = PolicySpec(
            env=env,
            observation_space=observations,
            action_space=actions,
            action_mapping=action_mapping(actions),
            model=model,
            base_model=base_model,
            context_length=net.config.num_context_steps + 1,
            observation_filter=normalizer and FilterSpec.from_normalizer(normalizer),
            value_mean=value_scale[0],
            value_std=value_scale[1],
            weights_sha256=hashlib.sha256(weights).hexdigest(),
            parity=record_parity(runner, observed),
            evaluation=evaluation,
            provenance=provenance,
        )
    except ValidationError as error:
        raise BundleError(f"cannot write bundle {path}: {first_problem(error)}") from error
    description = f"{spec.model_dump_json(indent=2)}\n".encode()
    check_amount(description, path / SPEC_FILE)
    with replacing_folder(path) as folder:
        (folder / WEIGHTS_FILE).write_bytes(weights)
        (folder / SPEC_FILE).write_bytes(description)
        (folder / CARD_FILE).write_text(model_card(spec), encoding="utf-8")
    return path


def load_bundle(path: str | Path, base_model: str | None = None) -> BundledPolicy:
    """Reads a bundle and proves that it acts as it did when it was written.

    A language model then acts on a GPU, if this process sees one; small nets stay on the CPU.

    Args:
        path: its folder.
        base_model: folder or name of the language model that it was trained on, if that is not
            in the model store; its SHA-256 must be the one in the bundle.

    Raises:
        BundleError: if a file is missing, truncated, foreign or edited, if a weight is not
            finite, if its base model is not there, or if the policy does not reproduce its
            recorded outputs to 1e-5.
    """
    path = Path(path)
    spec = read_spec(path)
    weights = _read_weights(path / WEIGHTS_FILE, spec)
    own = {k.removeprefix(_ACTOR): v for k, v in weights.items() if k.startswith(_ACTOR)}
    model = _with_base_model(path, spec, base_model)
    policy = BundledPolicy(_fit_actor(path / WEIGHTS_FILE, own, spec, model), spec)
    _check_parity(policy, path)
    if spec.model.has_language_model and torch.cuda.is_available():
        policy.actor.cuda()
    policy.actor.open_cache()  # its weights stay as they are
    return policy


def read_critic(path: Path) -> tuple[Critic, PolicySpec]:
    """The critic that trained a bundle's policy, and what the bundle says.

    Raises:
        BundleError: as `load_bundle`, or if the critic reads the hidden states of a language
            model, which the bundle does not hold, or began as a GPT-2 of unusual make.
    """
    spec = read_spec(path)
    if spec.model.critic_reads_features:
        raise BundleError(f"the critic of {path} reads hidden states, so it cannot be asked alone")
    gpt2 = spec.model.gpt2_settings
    if gpt2 is not None and gpt2.pretrained is not None:  # a stranger's path is not opened
        raise BundleError(
            f"the critic of {path} began as a pretrained GPT-2 whose sizes {SPEC_FILE} does not "
            f"record, so it cannot be asked; new bundles record them, unless the GPT-2 is of "
            f"unusual make"
        )
    weights = _read_weights(path / WEIGHTS_FILE, spec)
    own = {k.removeprefix(_CRITIC): v for k, v in weights.items() if k.startswith(_CRITIC)}
    try:
        with torch.device("meta"):  # as for the actor: shapes before memory
            sizes = spec.observed_space.size, spec.action_spec
            critic = _net(spec.model).build_critic(spec.model, *sizes, 0)
    except (RuntimeError, ValueError, OSError) as error:
        raise BundleError(f"{path} describes a critic that cannot be built") from error
    _check_layout(path / WEIGHTS_FILE, _CRITIC, critic.state_dict(), own)
    critic.load_state_dict(own, assign=True)
    return critic.requires_grad_(False).eval(), spec


def _net(model: ModelConfig) -> type[ActorCritic]:
    net: type[ActorCritic] = model.import_implementation()
    return net


def _named_base_model(config: ModelConfig) -> tuple[ModelConfig, BaseModelSpec | None]:
    """The settings of a model and its base model, whose folder is left out but for its name."""
    if config.base_model is None:
        return config, None
    folder = find_model(config.base_model)
    name = os.path.basename(os.path.abspath(folder))
    spec = BaseModelSpec(name=name, sha256=fingerprint(folder))
    return config.with_base_model(name), spec


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


def _read_weights(path: Path, spec: PolicySpec) -> dict[str, Tensor]:
    """The weights that belong to the description, all finite."""
    with read_errors(path), open_file(path, spec.max_weights_bytes) as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != spec.weights_sha256:
            raise BundleError(
                f"{path} is truncated or belongs to another bundle (its sha256 is not the one in "
                f"{SPEC_FILE}); copy the bundle again"
            )
        file.seek(0)
        content = file.read(os.fstat(file.fileno()).st_size)  # `open_file` has bounded it
    try:
        weights = safetensors.torch.load(content)
        broken = _not_finite(weights)
    except (
        safetensors.SafetensorError,
        KeyError,
        OverflowError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise BundleError(
            f"{path} is no safetensors file of a policy: {brief(error)}; copy the bundle again"
        ) from error
    if broken is not None:
        raise BundleError(f"{path}: weight {brief(broken)} holds NaN or infinite numbers")
    return weights


def _fit_actor(
    path: Path, weights: dict[str, Tensor], spec: PolicySpec, model: ModelConfig
) -> Actor:
    """An actor of the described size with the given weights, both compared before any use."""
    sizes = spec.observed_space.size, spec.action_spec
    outline, expected = _outline(path, spec, model)
    _check_layout(path, _ACTOR, expected, weights)
    if model.has_language_model:
        actor = _net(model).build_actor(model, *sizes)
        actor.load_state_dict(weights, strict=False)
    else:
        actor = outline
        actor.load_state_dict(weights, assign=True)
    return actor.requires_grad_(False).eval()


def _check_layout(
    path: Path, prefix: str, expected: dict[str, Tensor], weights: dict[str, Tensor]
) -> None:
    """Compares names, types and shapes of the weights in a file with those of a net."""
    wanted = {name: _layout(value) for name, value in expected.items()}
    found = {name: _layout(value) for name, value in weights.items()}
    if wanted != found:
        name = min(n for n in wanted.keys() | found.keys() if wanted.get(n) != found.get(n))
        raise BundleError(
            f"{path} does not fit {SPEC_FILE}: {brief(prefix + name)} is "
            f"{found.get(name, 'missing')}, expected {wanted.get(name, 'no such weight')}"
        )


def _outline(path: Path, spec: PolicySpec, model: ModelConfig) -> tuple[Actor, dict[str, Tensor]]:
    """The described actor and the weights of its own: shapes without memory."""
    sizes = spec.observed_space.size, spec.action_spec
    try:
        problems = model.prompt_problems(*sizes)
        light = model.without_base_weights()
        with torch.device("meta"):
            actor = _net(light).build_actor(light, *sizes)
    except Exception as error:  # sizes that do not fit each other or torch, in a stranger's file
        raise BundleError(f"{path.parent} describes a net that cannot be built") from error
    if problems:
        raise BundleError(f"{path.parent} cannot be used: {problems[0]}")
    return actor, actor.own_state() if light is model else actor.trainable_state()


def _with_base_model(path: Path, spec: PolicySpec, given: str | None) -> ModelConfig:
    """The described model on the folder of its base model.

    The bundle holds what differs from it, and its SHA-256: what it is called, which may be a path
    in bundles that were written earlier, opens nothing.
    """
    if spec.base_model is None:
        return spec.model
    name = os.path.basename(spec.base_model.name)
    try:
        folder = find_by_fingerprint(spec.base_model.sha256, name, given)
    except FileNotFoundError as error:
        raise BundleError(f"{path} needs the base model {name}: {error}") from error
    return spec.model.with_base_model(str(folder))


def _layout(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def _check_parity(policy: BundledPolicy, path: Path) -> None:
    try:
        error = parity_error(policy, policy.spec.parity)
    except Exception as failure:  # a stranger's net may fail in any way
        raise BundleError(f"{path} cannot act on its recorded observations") from failure
    if not error <= PARITY_TOLERANCE:
        reason = "the bundle was edited, export the policy again"
        if not policy.actor.reads_as_before:
            reason = (
                "it was edited, or an earlier release tokenised its prompts otherwise: train it"
            )
            reason += " again"
        raise BundleError(
            f"{path} fails its parity check: recorded outputs differ by {error:.1e} "
            f"(allowed {PARITY_TOLERANCE:.0e}); {reason}"
        )
