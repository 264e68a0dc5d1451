"""Language models of a few kilobytes as the policy, and a training of them."""

from __future__ import annotations

from pathlib import Path

from custom_models.configs import LLMPolicyConfig
from custom_models.model_config import GPT2CriticSettings
from rl_service.config.algorithms import OnPolicySettings, TRPOSettings
from rl_service.training.run import Run
from rl_service.training.train import train
from tests.support.recorder import Recorder
from tests.support.small_runs import small_settings

SMALL_GPT2 = GPT2CriticSettings(context_length=4, n_layer=1, n_head=2, n_embd=16)
SMALL = LLMPolicyConfig(
    hidden_sizes=(16,), critic_hidden_sizes=(16,), n_layer=1, n_head=2, n_embd=16, context_length=2
)
LORA = SMALL.model_copy(update={"finetune": "lora"})
FULL = SMALL.model_copy(update={"finetune": "full", "micro_batch_size": 16})
ON_GPT2 = SMALL.model_copy(update={"critic": "gpt2", "gpt2_critic": SMALL_GPT2})
ON_FEATURES = {"critic": "hidden_state"}
READER = LLMPolicyConfig(
    observation="text",
    critic="hidden_state",
    finetune="lora",
    action_scoring="tokens",
    n_layer=1,
    n_head=2,
    n_embd=16,
)
TOKENS = FULL.model_copy(update={"action_scoring": "tokens", "context_length": 1})


def case_id(value: object) -> str:
    """Of a parameter of `check_learning`."""
    if isinstance(value, LLMPolicyConfig):
        return f"{value.finetune}-{value.critic}"
    return str(getattr(value, "__name__", value))


def check_learning(
    model: LLMPolicyConfig,
    algorithm: type[OnPolicySettings],
    env: str,
    workers: int,
    folder: Path,
) -> None:
    """Trains two iterations to their end."""
    settings = small_settings(
        model, env=env, workers=workers, iterations=2, algorithm=algorithm, output_dir=folder
    )
    run, recorder = Run.create(settings, command=[]), Recorder()
    result = train(settings, observer=recorder, run=run)
    assert (result.status, result.env_steps) == ("finished", 256)
    if algorithm is TRPOSettings:
        assert max(row["mean_kl_loss"] for row in recorder.rows) <= 1.05 * 0.01
        assert any(row["step_accepted"] for row in recorder.rows)
