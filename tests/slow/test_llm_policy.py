"""The rest of the matrix: ways of learning by algorithms, and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from custom_models.configs import LLMPolicyConfig
from rl_service.config.algorithms import A2CSettings, OnPolicySettings, PPOSettings, TRPOSettings
from tests.support.language_models import (
    FULL,
    LORA,
    ON_FEATURES,
    SMALL,
    TOKENS,
    case_id,
    check_learning,
)
from tests.support.small_runs import assert_resume_is_exact, small_settings

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.mark.parametrize(
    ("model", "algorithm", "env", "workers"),
    [
        (SMALL, PPOSettings, "CartPole-v1", 0),
        (SMALL, TRPOSettings, "Pendulum-v1", 0),
        (LORA, TRPOSettings, "CartPole-v1", 0),
        (FULL, A2CSettings, "CartPole-v1", 0),
        (TOKENS, PPOSettings, "CartPole-v1", 0),
        (TOKENS, TRPOSettings, "CartPole-v1", 0),
        (SMALL.model_copy(update=ON_FEATURES), PPOSettings, "Pendulum-v1", 0),
        (LORA.model_copy(update=ON_FEATURES), TRPOSettings, "CartPole-v1", 0),
    ],
    ids=case_id,
)
def test_every_way_of_learning_trains_with_every_algorithm(
    model: LLMPolicyConfig,
    algorithm: type[OnPolicySettings],
    env: str,
    workers: int,
    tmp_path: Path,
) -> None:
    check_learning(model, algorithm, env, workers, tmp_path)


@pytest.mark.parametrize(
    ("model", "algorithm", "workers"),
    [(SMALL, PPOSettings, 2), (LORA, A2CSettings, 0), (FULL, TRPOSettings, 0)],
    ids=["head, workers", "lora", "full"],
)
def test_resumed_training_equals_unbroken_training(
    model: LLMPolicyConfig,
    algorithm: type[OnPolicySettings],
    workers: int,
    tmp_path: Path,
    build: Any,
) -> None:
    settings = small_settings(model, algorithm=algorithm, workers=workers, env="CartPole-v1")
    assert_resume_is_exact(build, settings, tmp_path, 1)
