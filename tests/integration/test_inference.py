"""A language model that acts for all rollout workers in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from custom_models.configs import LLMPolicyConfig
from rl_service.algorithms.base import OnPolicyAlgorithm
from rl_service.algorithms.batch import build_learner_batch
from rl_service.algorithms.sampling import Background
from rl_service.common.errors import TrainingFailedError
from rl_service.config.settings import Settings
from tests.integration.test_text import HEAD, LAKE, LORA, NEEDS, OFFERED, text_settings
from tests.support.language_models import LORA as NUMBERS
from tests.support.small_runs import small_settings

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of language models have an `InferenceActor`, though there is no GPU."""
    monkeypatch.setattr(Settings, "has_inference_actor", property(lambda _: True))


def settings_of(model: LLMPolicyConfig, env: dict[str, Any]) -> Settings:
    base = text_settings(model, env)
    resources = base.resources.model_copy(
        update={"num_env_runners": 2, "num_envs_per_env_runner": 4}
    )
    return base.model_copy(update={"resources": resources})


def iterate(algorithm: OnPolicyAlgorithm) -> dict[str, float]:
    """An iteration's statistics, without its times."""
    found = algorithm.train()["info"]["learner"]
    return {name: value for name, value in found.items() if not name.endswith("_s")}


@pytest.mark.parametrize(
    "settings",
    [
        settings_of(HEAD, LAKE),
        settings_of(LORA, LAKE),
        settings_of(OFFERED, NEEDS),
        small_settings(NUMBERS, workers=2),
    ],
    ids=["head", "lora", "admissible", "numbers"],
)
def test_what_workers_are_answered_is_what_the_learner_computes(
    settings: Settings, build: Any, asked: None
) -> None:
    algorithm = build(settings)
    first = iterate(algorithm)
    assert first["weights_lag"] == 0
    old = {name: w.copy() for name, w in algorithm.learner_policy.get_weights().items()}
    assert iterate(algorithm)["weights_lag"] == 0
    policy = algorithm.learner_policy
    assert any((old[name] != w).any() for name, w in policy.get_weights().items())
    rows = build_learner_batch(policy, algorithm._sampler.sample(2).batch).actor
    with torch.no_grad():
        ratio = (policy.action_distribution(rows).log_prob(rows.actions) - rows.action_logp).exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-4)
    [sizes] = {tuple(each) for each in algorithm.fleet.call("apply", weights_of).values()}
    assert sizes == ()


def weights_of(worker: Any) -> list[int]:
    """Sizes of what a worker holds of the nets."""
    return [p.numel() for p in worker.policy_map["default_policy"].net.parameters()]


def test_a_run_goes_on_when_the_process_of_the_language_model_dies(build: Any, asked: None) -> None:
    """Once between two batches, once with workers that wait for an answer."""
    settings = settings_of(LORA, LAKE)
    undisturbed = build(settings)
    expected = [iterate(undisturbed) for _ in range(4)]
    undisturbed.stop()
    disturbed = build(settings)
    messages: list[str] = []
    disturbed.fleet.on_message = messages.append
    found = [iterate(disturbed)]
    os.kill(process_of(disturbed), signal.SIGKILL)
    found.append(iterate(disturbed))
    stopped = process_of(disturbed)
    os.kill(stopped, signal.SIGSTOP)
    iteration = Background(lambda: iterate(disturbed))
    time.sleep(2.0)  # by then they have asked
    os.kill(stopped, signal.SIGKILL)
    found += [iteration.result(), iterate(disturbed)]
    for now, before in zip(found, expected, strict=True):
        assert now == pytest.approx(before, rel=1e-3, abs=1e-4)
    restarts = [text for text in messages if "the process of the language model was lost" in text]
    assert len(restarts) == 2
    assert disturbed.fleet.num_restarts == 0


def process_of(algorithm: OnPolicyAlgorithm) -> int:
    assert algorithm._inference is not None
    found: int = ray.get(algorithm._inference.actor.process_id.remote())
    return found


def test_a_language_model_that_cannot_start_ends_the_run(
    build: Any, asked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = build(settings_of(HEAD, LAKE))
    monkeypatch.setattr(algorithm._inference, "_arguments", (algorithm.settings, -1, None))
    with pytest.raises(TrainingFailedError, match="the process for the language model did not st"):
        algorithm.train()


def test_a_language_model_that_dies_in_its_start_ends_the_run(
    build: Any, asked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = build(settings_of(HEAD, LAKE))
    monkeypatch.setattr(algorithm._inference, "_arguments", (Lethal(), 1, None))
    monkeypatch.setattr(algorithm._inference, "_limit_s", 8.0)
    with pytest.raises(TrainingFailedError, match="not ready after 8 s"):
        algorithm.train()


class Lethal:
    """Ends the process that reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (1,)


def test_a_run_ends_though_the_process_of_the_language_model_hangs(build: Any, asked: None) -> None:
    """Even if it hangs once all samples are there."""
    algorithm = build(settings_of(HEAD, LAKE))
    algorithm.train()
    inference = algorithm._inference
    os.kill(process_of(algorithm), signal.SIGSTOP)
    algorithm._next_samples = looking = Background(lambda: inference.look(print))
    ending = Background(algorithm.stop)
    ending._thread.join(30.0)
    assert not ending._thread.is_alive()
    with pytest.raises(TrainingFailedError):
        looking.result()


def test_after_a_state_is_restored_its_weights_act(build: Any, asked: None, tmp_path: Path) -> None:
    """Though others of the same version acted before."""
    algorithm = build(settings_of(LORA, LAKE))
    algorithm.train()
    algorithm.save_checkpoint(str(tmp_path))
    policy = algorithm.learner_policy
    with torch.no_grad():
        for p in policy.net.actor.trainable_state().values():
            p += 0.1 * torch.randn_like(p)
    algorithm._sampler.sample(9)
    algorithm.load_checkpoint(str(tmp_path))
    algorithm.start_workers()
    rows = build_learner_batch(policy, algorithm._sampler.sample(9).batch).actor
    with torch.no_grad():
        ratio = (policy.action_distribution(rows).log_prob(rows.actions) - rows.action_logp).exp()
    torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=1e-4)
