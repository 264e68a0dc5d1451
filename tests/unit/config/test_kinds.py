"""Kinds of models and algorithms by name, ours and from outside."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from custom_models import kinds
from custom_models.configs import (
    MODELS,
    GPT2CriticConfig,
    MLPConfig,
    ModelField,
    StrangersModelField,
)
from custom_models.model_config import ModelConfig
from docs.examples.decoupled_ppo import Algorithm, DecoupledPPO
from docs.examples.reward_critic import RewardCritic, RewardCriticNet
from rl_service.common.errors import SettingsError
from rl_service.config.algorithms import ALGORITHMS
from rl_service.config.load import dump_settings, load_settings

MODEL = "docs.examples.reward_critic:RewardCritic"
ALGORITHM = "docs.examples.decoupled_ppo:DecoupledPPO"
STRANGERS: TypeAdapter[object] = TypeAdapter(StrangersModelField)


def problems(**given: str) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        load_settings(**given)  # type: ignore[arg-type]
    return raised.value.problems


def test_ours_are_found_by_their_short_names() -> None:
    assert list(MODELS.ours) == ["gpt2_critic", "llm_policy", "mlp"]
    assert list(ALGORITHMS.ours) == ["a2c", "ppo", "trpo"]
    assert MODELS.find("mlp") is MLPConfig
    assert MLPConfig().name == MLPConfig().short_name == "mlp"


def test_one_from_outside_is_its_module_and_class() -> None:
    loaded = load_settings(
        model=MODEL,
        algorithm=ALGORITHM,
        env="CartPole-v1",
        overrides=["model.reward_scale=2", "algorithm.actor_lambda=0.5"],
    ).settings
    assert isinstance(loaded.model, RewardCritic)
    assert (loaded.model.name, loaded.model.short_name) == (MODEL, "RewardCritic")
    assert loaded.model.reward_scale == 2.0
    assert loaded.model.import_implementation() is RewardCriticNet
    assert isinstance(loaded.algorithm, DecoupledPPO)
    assert loaded.algorithm.import_implementation() is Algorithm
    assert (loaded.algorithm.actor_lambda, loaded.algorithm.lambda_) == (0.5, 1.0)


def test_settings_of_one_from_outside_are_read_back(tmp_path: Path) -> None:
    first = load_settings(model=MODEL, algorithm=ALGORITHM).settings
    (tmp_path / "config.yaml").write_text(dump_settings(first), encoding="utf-8")
    assert load_settings(config=tmp_path / "config.yaml").settings == first
    assert RewardCritic() == MODELS.find(MODEL).model_validate({"name": MODEL})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_module_x:M", "module no_such_module_x cannot be imported"),
        ("docs.examples.reward_critic:RewardCritik", "did you mean RewardCritic?"),
        (
            "docs.examples.reward_critic:RewardReader",
            "derives from custom_models.model_config.ModelConfig",
        ),
        (ALGORITHM, "is no model"),
        ("os:system", "is no model"),
    ],
)
def test_what_is_no_model_is_refused_with_the_reason(name: str, reason: str) -> None:
    [problem] = problems(model=name)
    assert problem.startswith(f"model.name={name}")
    assert reason in problem


def test_settings_of_one_from_outside_are_checked_like_ours() -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings(model=MODEL, overrides=["model.reward_scale=x", "model.n_layers=3"])
    first, second = sorted(raised.value.problems)
    assert first.startswith("model.reward_scale='x' (from --set): must be a valid number")
    assert second == "unknown setting model.n_layers (from --set); did you mean model.n_layer?"


def test_settings_of_one_kind_refuse_the_name_of_another() -> None:
    with pytest.raises(ValidationError, match="these are settings of gpt2_critic"):
        GPT2CriticConfig(name="mlp")


def test_a_strangers_file_imports_only_what_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger_x.py").write_text(
        "from custom_models.configs import MLPConfig\nclass Model(MLPConfig):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(kinds, "_allowed", set())
    given = json.dumps({"name": "stranger_x:Model"})
    with pytest.raises(ValidationError, match="allow it with --allow-module stranger_x"):
        STRANGERS.validate_json(given)
    kinds.allow_module("stranger")  # another module, though its name begins alike
    with pytest.raises(ValidationError, match="allow it with"):
        STRANGERS.validate_json(given)
    assert "stranger_x" not in sys.modules
    kinds.allow_module("stranger_x")
    model = STRANGERS.validate_json(given)
    assert isinstance(model, MLPConfig)
    assert model.name == "stranger_x:Model"


EARLIER_CRITIC = {
    "context_length": 64,
    "attention": "banded",
    "n_layer": 2,
    "n_head": 8,
    "n_embd": 64,
    "dropout": 0.0,
    "n_positions": 1024,
    "max_timesteps": 1024,
    "pretrained": None,
}
"""As the releases before `model.time` wrote it, whether it was used or not."""


@pytest.mark.parametrize("field", [ModelField, StrangersModelField])
@pytest.mark.parametrize("attention", ["banded", "window"])
@pytest.mark.parametrize("name", ["gpt2_critic", "mlp", "gpt2", "hidden_state"])
def test_models_of_earlier_releases_keep_their_meaning(
    name: str, attention: str, field: Any
) -> None:
    """By the critic's name: `gpt2_critic`, or that of a language model."""
    critic = EARLIER_CRITIC | {"attention": attention}
    if name == "gpt2_critic":
        given: dict[str, Any] = {"name": name, **critic}
    else:
        unused = {} if name == "gpt2" else {"attention": "banded"}
        given = {"name": "llm_policy", "critic": name, "gpt2_critic": critic | unused}
    adapter: TypeAdapter[ModelConfig] = TypeAdapter(field)
    settings = adapter.validate_python(given).gpt2_settings
    assert adapter.validate_json(json.dumps(given)).gpt2_settings == settings
    if name in ("mlp", "hidden_state"):
        assert settings is None
        return
    assert settings is not None
    expected = "approximate" if attention == "banded" else "window"
    assert (settings.attention, settings.time, settings.num_timesteps) == (
        expected,
        "absolute",
        1024,
    )
    assert (settings.history_actions, settings.context_length, settings.n_layer) == (True, 64, 2)
