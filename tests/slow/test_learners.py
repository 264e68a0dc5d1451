"""Several learners with the other combinations of models and algorithms."""

from __future__ import annotations

from typing import Any

import pytest

from rl_service.config.algorithms import A2CSettings, TRPOSettings
from rl_service.config.settings import Settings
from tests.support.language_models import FULL, ON_FEATURES, SMALL, TOKENS
from tests.support.learners import (
    ACTS,
    CRITIC,
    UNEVEN,
    NotCompiled,
    check_that_they_compute_what_one_does,
    with_learners,
)
from tests.support.small_runs import small_settings

pytestmark = pytest.mark.usefixtures("local_ray")

SINGLE = {"minibatch_size": 1, "num_epochs": 1}  # the second learner never has a row
RUNS = {
    "mlp, discrete": small_settings(env="CartPole-v1", entropy_coeff=0.01, vf_clip_param=0.2),
    "mlp, single rows": small_settings(**SINGLE),
    "torch, single rows": small_settings(algorithm=NotCompiled, **SINGLE),
    "a2c, gpt2 acts": small_settings(ACTS, algorithm=A2CSettings, optimizer="adam"),
    "trpo, gpt2 acts": small_settings(ACTS, env="CartPole-v1", algorithm=TRPOSettings),
    "language model, head": small_settings(SMALL.model_copy(update=ON_FEATURES), env="CartPole-v1"),
    "language model, tokens": small_settings(TOKENS, env="CartPole-v1", num_epochs=1),
}


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_two_learners_compute_what_one_does(settings: Settings, build: Any) -> None:
    check_that_they_compute_what_one_does(build, settings, 2, 3)


def test_two_learners_find_the_natural_step_of_a_language_model(build: Any) -> None:
    """One of them: from then on, conjugate gradient makes much of how sums were rounded."""
    settings = small_settings(FULL, env="CartPole-v1", algorithm=TRPOSettings)
    check_that_they_compute_what_one_does(build, settings, 2, 1)


def test_three_learners_beside_a_rollout_worker(build: Any) -> None:
    settings = small_settings(CRITIC, workers=1, **UNEVEN)
    settings = with_learners(settings, 1, num_cpus_per_env_runner=0.0)  # Ray has two CPUs
    rows = check_that_they_compute_what_one_does(build, settings, 3, 3)
    assert [row["weights_lag"] for row in rows] == [0, 0, 0]
