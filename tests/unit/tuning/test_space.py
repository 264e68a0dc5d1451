"""Spaces: what is drawn, what depends on what, what becomes settings, what cannot be searched."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from custom_models.configs import GPT2CriticConfig, MLPConfig
from rl_service.common.errors import SettingsError
from rl_service.config.algorithms import PPOSettings
from rl_service.config.settings import Settings
from rl_service.tuning.domains import Domain
from rl_service.tuning.space import SearchSpace, check_point, check_space

BASE = Settings(model=MLPConfig(), algorithm=PPOSettings(train_batch_size=2048))
CONDITIONAL = {
    "model.n_layer": {"choice": [1, 2], "when": {"model.name": "gpt2_critic"}},
    "model.name": {"choice": ["mlp", "gpt2_critic"]},
    "algorithm.actor_lr": {"loguniform": [1e-4, 1e-2]},
}


def space(base: Settings = BASE, **domains: dict[str, Any]) -> SearchSpace:
    return SearchSpace(base, {key: Domain(**given) for key, given in domains.items()})


def test_a_setting_is_drawn_only_where_its_condition_holds() -> None:
    asked: list[str] = []

    def suggest(key: str, domain: Domain) -> Any:
        asked.append(key)
        return {"model.name": model, "model.n_layer": 2}.get(key, 1e-3)

    searched = space(**CONDITIONAL)
    model = "mlp"
    assert searched.draw(suggest) == {"model.name": "mlp", "algorithm.actor_lr": 1e-3}
    assert "model.n_layer" not in asked
    model = "gpt2_critic"
    drawn = searched.draw(suggest)
    assert drawn["model.n_layer"] == 2
    settings = searched.settings(searched.values(drawn), seed=9)
    assert isinstance(settings.model, GPT2CriticConfig)
    assert (settings.model.n_layer, settings.seed) == (2, 9)
    assert settings.algorithm.name == "ppo"
    assert settings.algorithm.train_batch_size == 2048


def test_a_condition_on_a_fixed_setting() -> None:
    drawn = {"choice": [1, 2], "when": {"model.name": "gpt2_critic"}}
    for model, expected in ((MLPConfig(), {}), (GPT2CriticConfig(), {"model.n_layer": 1})):
        searched = space(Settings(model=model), **{"model.n_layer": drawn})
        assert searched.draw(lambda key, domain: 1) == expected


def test_fixed_settings_stay_beside_searched_ones() -> None:
    base = Settings(model=MLPConfig(hidden_sizes=(7,)), algorithm=PPOSettings(gamma=0.5))
    searched = space(base, **{"algorithm.lambda_": {"uniform": [0.8, 1.0]}})
    settings = searched.settings(searched.values({"algorithm.lambda_": 0.9}))
    assert settings.model == base.model
    assert (settings.algorithm.gamma, settings.algorithm.lambda_) == (0.5, 0.9)


@pytest.mark.parametrize(
    ("domains", "words"),
    [
        ({}, "search_space is empty"),
        ({"actor_lr": {"uniform": [0.1, 0.2]}}, "settings are written group.key"),
        ({"optimizer.lr": {"uniform": [0.1, 0.2]}}, "groups are env, model, algorithm"),
        ({"algorithm.actr_lr": {"uniform": [0.1, 0.2]}}, "did you mean algorithm.actor_lr"),
        ({"algorithm.gamma": {"uniform": [0.5, 1.5]}}, "algorithm.gamma=1.5"),
        ({"algorithm.minibatch_size": {"choice": [64, 4096]}}, "minibatch_size=4096 is larger"),
        ({"model.n_layer": {"choice": [1]}}, "model.n_layer"),
        ({"env.id": {"choice": ["CartPole-v1"]}}, "scores of different environments"),
        ({"evaluation.num_episodes": {"integer": [1, 9]}}, "measured in different ways"),
        ({"stop.env_steps": {"integer": [64, 999]}}, "trainings of different length"),
        ({"tracking.tensorboard": {"choice": [True]}}, "it changes no score"),
        (
            {**CONDITIONAL, "model.n_layer": {"choice": [1], "when": {"model.name": "gpt3"}}},
            "when waits for model.name=gpt3, and 'gpt3' is not among ['mlp', 'gpt2_critic']",
        ),
        (
            {"model.n_layer": {"choice": [1], "when": {"model.name": "gpt2_critic"}}},
            "model.n_layer would never be drawn, since its `when` (model.name is gpt2_critic)",
        ),
        (  # it depends on the layers of the model that has none
            {
                **CONDITIONAL,
                "model.hidden_sizes": {"choice": [[8]], "when": {"model.n_layer": 1}},
                "algorithm.gamma": {
                    "uniform": [0.5, 1],
                    "when": {"model.name": "mlp", "model.n_layer": 2},
                },
            },
            "algorithm.gamma would never be drawn",
        ),
        (
            {"algorithm.gamma": {"uniform": [0.5, 1], "when": {"model.colour": "red"}}},
            "when names model.colour, which is no setting",
        ),
        (
            {
                "algorithm.gamma": {"uniform": [0.5, 1], "when": {"algorithm.lambda_": 0.9}},
                "algorithm.lambda_": {"uniform": [0.5, 1], "when": {"algorithm.gamma": 0.9}},
            },
            "each `when` waits for another",
        ),
    ],
)
def test_what_cannot_be_searched(domains: dict[str, Any], words: str) -> None:
    problems = check_space(space(**domains))
    assert any(words in problem for problem in problems), problems


def test_what_can_be_searched_has_no_problems() -> None:
    assert check_space(space(**CONDITIONAL)) == []


def test_a_condition_on_a_setting_of_another_kind_of_model() -> None:
    """The base's model has no such setting; the model that is drawn has it by default."""
    default = GPT2CriticConfig().n_head
    searched = space(
        **CONDITIONAL, **{"algorithm.gamma": {"choice": [0.5], "when": {"model.n_head": default}}}
    )
    assert check_space(searched) == []

    def suggest(model: str, key: str, domain: Domain) -> Any:
        return model if key == "model.name" else domain.coordinates[0]

    for model, is_drawn in (("mlp", False), ("gpt2_critic", True)):
        drawn = searched.draw(partial(suggest, model))
        assert ("algorithm.gamma" in drawn) is is_drawn


def test_a_value_may_need_another_drawn_value() -> None:
    """A minibatch that is larger than the base's batch, and not than all that can be drawn."""
    domains = {"algorithm.minibatch_size": {"power_of_two": [64, 4096]}}
    assert check_space(space(**domains)) != []
    domains["algorithm.train_batch_size"] = {"power_of_two": [1024, 4096]}
    assert check_space(space(**domains)) == []


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"model.name": "mlp", "model.n_layer": 2}, "model.n_layer is drawn only when model.name"),
        ({"model.n_layer": 2}, "which the point does not say"),
        ({"model.name": "mlp", "algorithm.actor_lr": 1}, "1 is outside 0.0001 to 0.01"),
        (
            {"algorithm.minibatch_size": 4096, "model.name": "mlp", "algorithm.actor_lr": 1e-3}
            | {"algorithm.train_batch_size": 1024},
            "algorithm.minibatch_size=4096 is larger than algorithm.train_batch_size=1024",
        ),
    ],
)
def test_points_that_cannot_be_tried(point: dict[str, Any], words: str) -> None:
    sizes = ("algorithm.minibatch_size", "algorithm.train_batch_size")
    searched = space(**CONDITIONAL, **{key: {"power_of_two": [1024, 4096]} for key in sizes})
    [problem] = check_point(searched, point)
    assert words in problem
    assert check_point(searched, {"model.name": "gpt2_critic", "model.n_layer": 2}) == []


def test_points_become_coordinates_and_may_leave_settings_open() -> None:
    searched = space(**CONDITIONAL, **{"algorithm.gamma": {"one_minus_loguniform": [0.9, 0.99]}})
    assert searched.coordinates({"algorithm.gamma": 0.95}) == pytest.approx(
        {"algorithm.gamma": 0.05}
    )
    with pytest.raises(SettingsError) as error:
        searched.coordinates({"algorithm.gamma": 0.5, "algorithm.lambda_": 1})
    assert error.value.problems == [
        "points_to_evaluate: algorithm.gamma: 0.5 is outside 0.9 to 0.99",
        "points_to_evaluate: algorithm.lambda_ is not in search_space; add it there",
    ]
