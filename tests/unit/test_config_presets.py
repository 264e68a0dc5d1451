"""The shipped presets: whole, what their names say, and the paper's Table I where they say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from custom_models.configs import GPT2CriticConfig, MLPConfig
from rl_service.config import load_settings
from rl_service.config.algorithms import A2CSettings
from rl_service.config.presets import preset_names, preset_path
from tests.support.environments import ENVIRONMENTS

ENVS = sorted(ENVIRONMENTS)


def test_every_environment_has_both_presets_of_both_models() -> None:
    paper = [f"paper/{env}_{model}" for env in ENVS for model in ("ppo_ex", "ppo_gpt")]
    tuned = [f"tuned/{env}_{model}" for env in ENVS for model in ("gpt2_critic", "mlp")]
    others = ("_a2c", "_trpo", "_llm_policy")
    found = [
        name
        for name in preset_names()
        if not name.endswith(others) and not name.startswith(("reports/", "tuning/"))
    ]
    assert found == [*paper, "quickstart", *tuned]


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_loads_without_problems_and_begins_with_its_source(name: str) -> None:
    if not name.startswith("tuning/"):  # those have a test of their own
        load_settings(config=Path(name))
    assert preset_path(name).read_text(encoding="utf-8").startswith("# Source: ")


FOUND_BY_NAME = [name for name in preset_names() if name.startswith(("paper/", "tuned/"))]


@pytest.mark.parametrize("name", FOUND_BY_NAME)
def test_a_preset_is_for_the_environment_model_and_algorithm_in_its_name(name: str) -> None:
    env, _, model = name.partition("/")[2].partition("_")
    algorithm = None
    if model.endswith(("_a2c", "_trpo")):
        model, _, algorithm = model.rpartition("_")
    by_file = load_settings(config=Path(name)).settings
    by_name = load_settings(env=env, model=model, algorithm=algorithm)
    assert by_file.algorithm.name == (algorithm or "ppo")
    assert by_file == by_name.settings
    assert by_name.notes == [f"settings start from the preset {name}"]
    assert by_file.env.id == env


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("model", ["ppo_ex", "ppo_gpt"])
def test_the_papers_presets_hold_its_table(env: str, model: str) -> None:
    settings = load_settings(env=env, model=model).settings
    algorithm = settings.algorithm
    assert (settings.seed, settings.stop.iterations, settings.stop.env_steps) == (123, 150, None)
    assert (algorithm.gamma, algorithm.lambda_, algorithm.clip_param) == (0.99, 0.95, 0.2)
    assert (algorithm.actor_lr, algorithm.critic_lr) == (3e-4, 1e-3)
    assert (algorithm.train_batch_size, algorithm.minibatch_size) == (2048, 128)
    assert (algorithm.num_epochs, settings.env.max_episode_steps) == (5, 500)
    assert settings.model.hidden_sizes == (64, 64)
    assert (settings.model.activation, settings.model.activate_last) == ("relu", False)


def test_ppo_gpt_is_the_gpt2_critic_of_the_table() -> None:
    model = load_settings(env="LunarLander-v3", model="ppo_gpt").settings.model
    assert isinstance(model, GPT2CriticConfig)
    assert (model.context_length, model.n_layer, model.n_head) == (64, 2, 8)
    assert (model.n_embd, model.dropout, model.n_positions) == (64, 0.5, 1024)


def test_ppo_ex_is_the_mlp() -> None:
    assert isinstance(load_settings(env="Acrobot-v1", model="ppo_ex").settings.model, MLPConfig)


def test_an_environment_of_old_leads_to_its_successor_and_preset_with_a_note() -> None:
    loaded = load_settings(env="LunarLander-v2", model="ppo_gpt")
    assert loaded.settings.env.id == "LunarLander-v3"
    assert loaded.notes == [
        "LunarLander-v2 is no longer in gymnasium; using its successor LunarLander-v3",
        "settings start from the preset paper/LunarLander-v3_ppo_gpt",
    ]


def test_a_name_of_the_paper_on_an_environment_without_its_preset_is_noted() -> None:
    loaded = load_settings(env="MountainCar-v0", model="ppo_ex")
    assert loaded.settings.model.name == "mlp"
    assert loaded.notes == [
        "the paper's preset ppo_ex does not cover MountainCar-v0; using the defaults"
    ]


def test_an_algorithm_without_a_preset_takes_all_but_its_own_settings_from_ppos() -> None:
    loaded = load_settings(env="HalfCheetah-v4", model="mlp", algorithm="a2c")
    of_ppo = load_settings(env="HalfCheetah-v4", model="mlp").settings
    assert loaded.settings.algorithm == A2CSettings()
    assert loaded.settings.env == of_ppo.env
    assert loaded.settings.env.observation_filter == "MeanStdFilter"
    assert loaded.notes == [
        "settings start from the preset tuned/HalfCheetah-v4_mlp, those of a2c from its defaults"
    ]


def test_the_quickstart_trains_with_two_workers_for_less_than_five_minutes() -> None:
    settings = load_settings(config=Path("quickstart")).settings
    assert settings.resources.num_env_runners == 2
    assert settings.stop.time_s is not None
    assert settings.stop.time_s < 300
