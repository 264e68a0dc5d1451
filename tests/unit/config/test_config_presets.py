"""The shipped presets: whole, what their names say, and the paper's Table I where they say so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from custom_models.configs import GPT2CriticConfig, MLPConfig
from rl_service.config.algorithms import A2CSettings
from rl_service.config.load import load_settings
from rl_service.config.presets import preset_names, preset_path
from tests.support.environments import ENVIRONMENTS

ENVS = sorted(ENVIRONMENTS)
MLP_ALONE = (
    "BabyAIGoToText-v0",
    "Blackjack-v1",
    "CliffWalking-v1",
    "FrozenLake-v1",
    "FrozenLakeMaps-v1",
    "Taxi-v3",
)
"""Environments that a small net learns without a history."""


def test_every_environment_has_both_presets_of_both_models() -> None:
    paper = [f"paper/{env}_{model}" for env in ENVS for model in ("ppo_ex", "ppo_gpt")]
    tuned = [f"tuned/{env}_{model}" for env in ENVS for model in ("gpt2_critic", "mlp")]
    tuned += [f"tuned/{env}_mlp" for env in MLP_ALONE]
    others = ("_a2c", "_trpo", "_llm_policy")
    found = [
        name
        for name in preset_names()
        if not name.endswith(others) and not name.startswith(("reports/", "tuning/"))
    ]
    assert found == [*paper, "quickstart", *sorted(tuned)]


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
    assert (model.attention, model.time, model.history_actions) == ("approximate", "absolute", True)


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
    loaded = load_settings(env="HalfCheetah-v4", model="gpt2_critic", algorithm="a2c")
    of_ppo = load_settings(env="HalfCheetah-v4", model="gpt2_critic").settings
    assert loaded.settings.algorithm == A2CSettings()
    assert loaded.settings.env == of_ppo.env
    assert loaded.settings.env.observation_filter == "MeanStdFilter"
    assert loaded.notes == [
        "settings start from the preset tuned/HalfCheetah-v4_gpt2_critic, "
        "those of a2c from its defaults"
    ]


ZOO_PPO = {
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
    "lr_schedule": "constant",
    "gamma": 0.99,
    "lambda_": 0.95,
    "clip_param": 0.2,
    "entropy_coeff": 0.0,
    "minibatch_size": 64,
    "num_epochs": 10,
    "normalize_advantages": True,
    "observation_filter": "NoFilter",
    "normalize_returns": False,
    "hidden_sizes": (64, 64),
    "activation": "tanh",
    "activate_last": True,
    "log_std_init": 0.0,
}
"""With Stable-Baselines3's defaults for what its file does not give."""
NORMALIZED = {"observation_filter": "MeanStdFilter", "normalize_returns": True}
SAME_IN_ALL = ("gamma", "hidden_sizes", "activation", "log_std_init", *NORMALIZED)
BASICS = {key: ZOO_PPO[key] for key in SAME_IN_ALL}
ZOO_TRPO = BASICS | {
    "critic_lr": 1e-3,
    "lambda_": 0.95,
    "max_kl": 0.01,
    "cg_iterations": 15,
    "cg_damping": 0.1,
    "critic_num_epochs": 10,
    "minibatch_size": 128,
    "num_envs": 2,
    "env_steps": 100_000,
}
ZOO_A2C = BASICS | {
    "actor_lr": 7e-4,
    "critic_lr": 7e-4,
    "lr_schedule": "constant",
    "lambda_": 1.0,
    "optimizer": "rmsprop",
    "entropy_coeff": 0.0,
    "rollout_fragment_length": 5,
    "normalize_advantages": False,
    "num_envs": 8,
}
TIANSHOU = (
    ZOO_PPO
    | NORMALIZED
    | {
        "lr_schedule": "linear",
        "normalize_advantages": False,
        "log_std_init": -0.5,
        "train_batch_size": 2048,
        "num_envs": 8,
        "env_steps": 3_000_000,
    }
)

TIANSHOU_A2C = (
    ZOO_A2C
    | NORMALIZED
    | {
        "lr_schedule": "linear",
        "lambda_": 0.95,
        "entropy_coeff": 0.01,
        "log_std_init": -0.5,
        "num_envs": 16,
        "env_steps": 3_000_000,
    }
)
ZOO_TRPO_MUJOCO = (
    ZOO_TRPO
    | NORMALIZED
    | {
        "cg_iterations": 25,
        "critic_num_epochs": 20,
        "train_batch_size": 2048,
        "env_steps": 1_000_000,
    }
)


def zoo_ppo(num_envs: int, train_batch_size: int, env_steps: int, **more: Any) -> dict[str, Any]:
    sizes = {"num_envs": num_envs, "train_batch_size": train_batch_size, "env_steps": env_steps}
    return ZOO_PPO | sizes | more


OF_PPO = {
    "Acrobot-v1": zoo_ppo(16, 4096, 1_000_000, lambda_=0.94, num_epochs=4, **NORMALIZED),
    "BipedalWalker-v3": zoo_ppo(
        32, 65536, 5_000_000, gamma=0.999, clip_param=0.18, **NORMALIZED
    ),
    "CartPole-v1": zoo_ppo(
        8, 256, 100_000, actor_lr=1e-3, critic_lr=1e-3, lr_schedule="linear", gamma=0.98,
        lambda_=0.8, minibatch_size=256, num_epochs=20,
    ),
    "HalfCheetah-v4": TIANSHOU,
    "LunarLander-v3": zoo_ppo(
        16, 16384, 1_000_000, gamma=0.999, lambda_=0.98, entropy_coeff=0.01, num_epochs=4
    ),
    "Pendulum-v1": zoo_ppo(4, 4096, 100_000, actor_lr=1e-3, critic_lr=1e-3, gamma=0.9),
    "Walker2d-v4": TIANSHOU,
}  # fmt: skip
TABLE_I = {
    "activation": "relu",
    "activate_last": False,
    "critic_lr": 1e-3,
    "minibatch_size": 128,
}
SOURCES = {
    **{f"{env}_mlp": values for env, values in OF_PPO.items()},
    **{
        f"{env}_gpt2_critic": values | TABLE_I
        for env, values in OF_PPO.items()
        if env != "LunarLander-v3"  # found here
    },
    "Acrobot-v1_mlp_trpo": ZOO_TRPO | NORMALIZED | {"train_batch_size": 2048},
    "CartPole-v1_mlp_trpo": ZOO_TRPO
    | {
        "lambda_": 0.98,
        "cg_damping": 1e-3,
        "critic_num_epochs": 20,
        "minibatch_size": 512,
        "train_batch_size": 1024,
    },
    "Pendulum-v1_mlp_trpo": ZOO_TRPO
    | {"gamma": 0.9, "critic_num_epochs": 15, "train_batch_size": 2048},
    "LunarLander-v3_mlp_trpo": ZOO_TRPO
    | {
        "lambda_": 0.98,
        "cg_damping": 0.01,
        "critic_num_epochs": 15,
        "train_batch_size": 1024,
        "env_steps": 200_000,
    },
    "BipedalWalker-v3_mlp_trpo": ZOO_TRPO_MUJOCO,
    "HalfCheetah-v4_mlp_trpo": ZOO_TRPO_MUJOCO | {"max_kl": 0.04},
    "Walker2d-v4_mlp_trpo": ZOO_TRPO_MUJOCO,
    "Acrobot-v1_mlp_a2c": ZOO_A2C | NORMALIZED | {"num_envs": 16, "env_steps": 500_000},
    "BipedalWalker-v3_mlp_a2c": ZOO_A2C
    | NORMALIZED
    | {
        "actor_lr": 9.6e-4,
        "critic_lr": 9.6e-4,
        "lr_schedule": "linear",
        "lambda_": 0.9,
        "rollout_fragment_length": 8,
        "log_std_init": -2.0,
        "num_envs": 16,
        "env_steps": 5_000_000,
    },
    "HalfCheetah-v4_mlp_a2c": TIANSHOU_A2C,
    "LunarLander-v3_mlp_a2c": ZOO_A2C
    | {
        "actor_lr": 8.3e-4,
        "critic_lr": 8.3e-4,
        "lr_schedule": "linear",
        "gamma": 0.995,
        "entropy_coeff": 1e-5,
        "env_steps": 200_000,
    },
    "Walker2d-v4_mlp_a2c": TIANSHOU_A2C,
    "CartPole-v1_mlp_a2c": ZOO_A2C | {"env_steps": 500_000},
    "Pendulum-v1_mlp_a2c": ZOO_A2C
    | NORMALIZED
    | {
        "lr_schedule": "linear",
        "gamma": 0.9,
        "lambda_": 0.9,
        "rollout_fragment_length": 8,
        "log_std_init": -2.0,
        "env_steps": 1_000_000,
    },
}
"""What the named source of each preset says, in our words."""


@pytest.mark.parametrize("name", SOURCES)
def test_a_preset_names_every_value_that_its_source_has_not(name: str) -> None:
    settings = load_settings(config=Path(f"tuned/{name}")).settings
    resources = settings.resources
    values = {
        "num_envs": max(1, resources.num_env_runners) * resources.num_envs_per_env_runner,
        "env_steps": settings.stop.env_steps,
    }
    for group in (settings.env, settings.model, settings.algorithm):
        values |= dict(group)
    lines = preset_path(f"tuned/{name}").read_text(encoding="utf-8").splitlines()
    header = " ".join(line.removeprefix("# ") for line in lines if line.startswith("# "))
    ours = re.split("[;.:]", header.partition("Ours: ")[2])[0].split(", ")
    differing = {key for key, value in SOURCES[name].items() if values[key] != value}
    assert set(ours) - {"nothing"} == differing


def test_the_quickstart_trains_with_two_workers_for_less_than_five_minutes() -> None:
    settings = load_settings(config=Path("quickstart")).settings
    assert settings.resources.num_env_runners == 2
    assert settings.stop.time_s is not None
    assert settings.stop.time_s < 300
