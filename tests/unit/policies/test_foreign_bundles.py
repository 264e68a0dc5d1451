"""A bundle that is damaged, edited or foreign is refused in one line that names the trouble."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from rl_service.common.errors import BundleError
from rl_service.policies import load_bundle
from tests.conftest import WriteTestBundle
from tests.support.bundles import edit_spec, replace_weights

Weights = dict[str, Tensor]


@pytest.fixture
def bundle(tmp_path: Path, write_test_bundle: WriteTestBundle) -> Path:
    write_test_bundle(tmp_path / "bundle")
    return tmp_path / "bundle"


def edit_weights(bundle: Path, edit: Callable[[Weights], Any]) -> None:
    """Edits as a careful forger would: the digest is set right again."""
    path = bundle / "policy.safetensors"
    weights = safetensors.torch.load(path.read_bytes())
    edit(weights)
    replace_weights(bundle, safetensors.torch.save(weights))


def refusal(bundle: Path) -> str:
    with pytest.raises(BundleError) as raised:
        load_bundle(bundle)
    text = str(raised.value)
    assert "\n" not in text
    return text


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "nowhere is no policy bundle: no such folder" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors"])
def test_a_missing_file_is_named(bundle: Path, name: str) -> None:
    (bundle / name).unlink()
    assert f"{name} cannot be read: no such file" in refusal(bundle)


@pytest.mark.parametrize("name", ["policy.json", "policy.safetensors"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_refused(bundle: Path, name: str, kept: float) -> None:
    path = bundle / name
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    assert name in refusal(bundle)


def test_weights_of_another_bundle_are_refused(
    bundle: Path, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "other", seed=1)
    shutil.copy(tmp_path / "other" / "policy.safetensors", bundle)
    assert "belongs to another bundle" in refusal(bundle)


@pytest.mark.parametrize(
    "content", [b"", b"no weights", b"\x80\x04K\x01.", b"\xff" * 64, b"PK\x03\x04" + b"\0" * 64]
)
def test_a_file_that_is_no_safetensors_is_refused(bundle: Path, content: bytes) -> None:
    replace_weights(bundle, content)
    assert "is no safetensors file" in refusal(bundle)


def test_a_future_format_asks_for_the_version_that_wrote_it(bundle: Path) -> None:
    edit_spec(bundle, lambda spec: spec.update(format_version=4, novelty=True))
    assert "has format version 4 and this rl-service reads up to 3" in refusal(bundle)


EDITS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another format": (lambda s: s.update(format="other"), "format: Input should be"),
    "an unknown key": (lambda s: s.update(extra=1), "extra: Extra inputs are not permitted"),
    "a missing key": (lambda s: s.pop("model"), "model: Field required"),
    "an unknown model": (
        lambda s: s["model"].update(name="lstm"),
        "model: unknown model lstm; known: gpt2_critic, llm_policy, mlp",
    ),
    "a text for a number": (lambda s: s.update(value_mean="0"), "value_mean: Input should be"),
    "no deviation": (lambda s: s.update(value_std=0.0), "value_std: Input should be greater"),
    "an infinite number": (lambda s: s.update(value_mean=float("inf")), "finite number"),
    "too few bounds": (lambda s: s["observation_space"].update(low=[0.0]), "needs 4 lower"),
    "crossed bounds": (
        lambda s: s["observation_space"].update(low=[1.0] * 4, high=[0.0] * 4),
        "above upper bound",
    ),
    "another mapping": (
        lambda s: s.update(action_mapping="clip_and_scale"),
        "action_mapping clip_and_scale does not fit",
    ),
    "another context": (lambda s: s.update(context_length=5), "context_length 5 does not fit"),
    "a filter of another size": (
        lambda s: s.update(observation_filter={"mean": [0.0], "std": [1.0], "clip": 10.0}),
        "observation_filter.mean has 1 numbers a row; the policy needs 4",
    ),
    "no parity samples": (
        lambda s: s["parity"].update(observations=[], dist_inputs=[]),
        "parity.observations",
    ),
    "unpaired parity samples": (
        lambda s: s["parity"]["observations"].pop(),
        "not as many observations as dist_inputs",
    ),
    "a digest that is a path": (
        lambda s: s.update(weights_sha256="../../etc/passwd"),
        "weights_sha256: String should match pattern",
    ),
}


@pytest.mark.parametrize(("edit", "problem"), EDITS.values(), ids=EDITS.keys())
def test_a_spec_that_breaks_the_schema_is_refused(
    bundle: Path, edit: Callable[[dict[str, Any]], Any], problem: str
) -> None:
    edit_spec(bundle, edit)
    assert problem in refusal(bundle)


@pytest.mark.parametrize("text", ["[]", "null", "{", "[" * 100_000, '"' + "x" * 100])
def test_a_file_that_is_no_spec_is_refused(bundle: Path, text: str) -> None:
    (bundle / "policy.json").write_text(text)
    assert "policy.json is no rl-service-policy file" in refusal(bundle)


def test_a_huge_spec_is_refused_unread(bundle: Path) -> None:
    with (bundle / "policy.json").open("wb") as file:
        file.truncate(2**33)  # sparse: takes no space on the disk
    assert "is larger than" in refusal(bundle)


def test_a_large_net_is_compared_with_the_weights_before_it_is_made(bundle: Path) -> None:
    edit_spec(bundle, lambda spec: spec["model"].update(hidden_sizes=[4096] * 16))
    assert "policy.safetensors does not fit policy.json" in refusal(bundle)


def is_of_actor(item: tuple[str, Tensor]) -> bool:
    return item[0].startswith("actor.")


WEIGHT_EDITS: dict[str, tuple[Callable[[Weights], Any], str]] = {
    "missing": (
        lambda w: w.pop("actor.body.0.bias"),
        "actor.body.0.bias is missing, expected float32 (64,)",
    ),
    "unexpected": (
        lambda w: w.update({"actor.x": torch.zeros(1)}),
        "actor.x is float32 (1,), expected no such weight",
    ),
    "of another shape": (
        lambda w: w.update({"actor.body.0.bias": torch.zeros(63)}),
        "actor.body.0.bias is float32 (63,), expected float32 (64,)",
    ),
    "of another type": (
        lambda w: w.update({"actor.body.0.bias": torch.zeros(64, dtype=torch.float64)}),
        "actor.body.0.bias is float64 (64,), expected float32 (64,)",
    ),
    "NaN": (
        lambda w: w["actor.body.0.bias"].fill_(torch.nan),
        "weight actor.body.0.bias holds NaN or infinite numbers",
    ),
    "NaN in the critic": (
        lambda w: min(w.items(), key=is_of_actor)[1].fill_(torch.nan),
        "weight critic.",
    ),
    "slightly changed": (
        lambda w: w["actor.body.0.weight"].mul_(1.01),
        "fails its parity check: recorded outputs differ by",
    ),
}


@pytest.mark.parametrize(("edit", "problem"), WEIGHT_EDITS.values(), ids=WEIGHT_EDITS.keys())
def test_weights_that_do_not_fit_are_refused_though_their_digest_is_right(
    bundle: Path, edit: Callable[[Weights], Any], problem: str
) -> None:
    edit_weights(bundle, edit)
    assert problem in refusal(bundle)


def test_an_edited_filter_fails_the_parity_check(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "b", filtered=True)
    edit_spec(tmp_path / "b", lambda s: s["observation_filter"].update(mean=[0.0] * 4))
    assert "fails its parity check" in refusal(tmp_path / "b")
