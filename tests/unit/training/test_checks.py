"""What is wrong with settings on this machine is known before anything is started or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from custom_models.base_models import STORE_VARIABLE
from custom_models.configs import LLMPolicyConfig, MLPConfig
from custom_models.model_config import GPT2CriticSettings
from custom_models.transformer import load_gpt2
from rl_service.config.load import load_settings
from rl_service.config.settings import Settings
from rl_service.policies.spec import problems_of_bundles
from rl_service.runtime.machine import available_cpus, available_memory_bytes
from rl_service.training import checks
from rl_service.training.checks import check_machine, check_output, check_settings


def settings(*overrides: str) -> Settings:
    return load_settings(
        env="CartPole-v1", overrides=["resources.num_env_runners=0", *overrides]
    ).settings


@pytest.fixture
def gpt2_folder(tmp_path: Path) -> Path:
    """A tiny GPT-2, saved by Hugging Face's own library."""
    config = GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=64, vocab_size=4)
    GPT2Model(config).save_pretrained(tmp_path)
    return tmp_path


def pretrained_problems(folder: Path, context_length: int = 32) -> list[str]:
    model = settings(f"model.pretrained={folder}", f"model.context_length={context_length}").model
    return model.weights_problems()


def test_good_settings_have_no_problems(in_tmp_path: Path) -> None:
    assert check_settings(settings()) == []
    assert list(in_tmp_path.iterdir()) == []


class NothingInOnePart(gym.Env[Any, Any]):
    """gymnasium flattens a Box without entries; a bundle describes none."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Dict(
        {"a": gym.spaces.Box(-1, 1, (0,)), "b": gym.spaces.Box(-1, 1, (2,))}
    )

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        return self.observation_space.sample(), 0.0, True, False, {}


def test_spaces_that_no_bundle_describes_are_told_before_a_run_and_not_at_its_first_bundle() -> (
    None
):
    [problem] = check_settings(settings(f"env.id={__name__}:NothingInOnePart"))
    assert problem.startswith("no bundle can describe the spaces of ")
    assert "shape.0: Input should be greater than 0" in problem


class Walk(gym.Env[Any, Any]):
    """Does not end."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}


gym.register("Walk-v0", f"{__name__}:Walk")


def test_a_run_that_has_begun_without_a_time_limit_goes_on_without() -> None:
    """A resumed run keeps its environment, so it could not be given a limit."""
    walk = settings("env.id=Walk-v0")
    [problem] = check_machine(walk)
    assert "set env.max_episode_steps" in problem
    assert check_machine(walk, resumes=True) == []


def test_all_problems_with_the_machine_are_told_together(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    bad = settings(
        "env.id=CartPole-v9",
        "resources.num_env_runners=999",
        "algorithm.train_batch_size=7992",
        f"tracking.output_dir={file}",
        f"model.pretrained={tmp_path}",
    )
    found = check_settings(bad)
    assert len(found) == 4
    for part in ("CartPole-v1?", "num_env_runners=999", f"{file} cannot be", "config.json"):
        assert sum(part in problem for problem in found) == 1


def test_as_many_workers_as_cpus_are_allowed_and_one_more_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(checks, "available_cpus", lambda: 2)
    assert check_settings(settings("resources.num_env_runners=2")) == []
    [problem] = check_settings(settings("resources.num_env_runners=3"))
    assert "need 3 CPUs, and there are 2; use at most 2" in problem


def test_workers_that_take_half_a_cpu_count_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(checks, "available_cpus", lambda: 2)
    half = "resources.num_cpus_per_env_runner=0.5"
    assert check_settings(settings("resources.num_env_runners=4", half)) == []
    [problem] = check_settings(settings("resources.num_env_runners=5", half))
    assert "use at most 4" in problem


def test_further_learners_take_a_cpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(checks, "available_cpus", lambda: 2)
    two = "resources.num_learners=2"
    assert check_settings(settings("resources.num_env_runners=1", two)) == []
    [problem] = check_settings(settings("resources.num_env_runners=2", two))
    assert problem.startswith(
        "resources.num_env_runners=2 with 1 CPU each need 2 CPUs, and there are 2, less 1 for "
        "resources.num_learners=2; use at most 1 (resources.num_env_runners=1) or "
    )
    [problem] = check_settings(settings("resources.num_learners=4"))
    assert problem.startswith(
        "resources.num_learners=4 needs 3 CPUs, one for each but the first, and there are 2; use "
        "at most 3 (resources.num_learners=3) or "
    )


def test_a_cluster_decides_about_its_own_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    many = settings("resources.num_env_runners=999", "algorithm.train_batch_size=7992")
    assert check_settings(many) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a GPU that is not there")
def test_a_gpu_that_is_not_there_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    [problem] = check_settings(settings("resources.num_gpus=1"))
    assert "torch sees 0 GPUs" in problem


def test_the_machine_has_at_least_one_cpu_and_some_memory() -> None:
    assert available_cpus() >= 1
    memory = available_memory_bytes()
    assert memory is None or memory > 2**20


def test_a_folder_yet_to_be_made_is_judged_by_its_parent_and_not_made(tmp_path: Path) -> None:
    assert check_output(tmp_path / "a" / "b") == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    [problem] = check_output(file / "runs")
    assert f"({file}): Not a directory" in problem


def test_a_whole_folder_of_weights_is_accepted(gpt2_folder: Path) -> None:
    assert pretrained_problems(gpt2_folder) == []


def test_a_gpt2_with_its_language_head_is_accepted(tmp_path: Path) -> None:
    config = GPT2Config(n_layer=2, n_head=2, n_embd=8, n_positions=64, vocab_size=4, n_inner=12)
    GPT2LMHeadModel(config).save_pretrained(tmp_path)
    assert pretrained_problems(tmp_path) == []


def test_a_critics_weights_are_found_by_their_name_in_the_store(
    gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STORE_VARIABLE, str(gpt2_folder.parent))
    assert pretrained_problems(Path(gpt2_folder.name)) == []
    loaded = load_gpt2(GPT2CriticSettings(pretrained=gpt2_folder.name))
    assert (loaded.config.n_embd, loaded.config.n_positions) == (8, 64)


def test_weights_of_another_model_are_refused(gpt2_folder: Path) -> None:
    save_file({"encoder.weight": torch.zeros(4, 8)}, gpt2_folder / "model.safetensors")
    [problem] = pretrained_problems(gpt2_folder)
    assert "has no h.0.ln_1.weight, so it is of another model" in problem


@pytest.mark.parametrize("name", ["h.0.attn.c_attn.weight", "ln_f.bias", "wpe.weight"])
def test_weights_of_another_size_are_refused(gpt2_folder: Path, name: str) -> None:
    path = gpt2_folder / "model.safetensors"
    weights = load_file(path)
    save_file({**weights, name: torch.zeros(3)}, path)
    [problem] = pretrained_problems(gpt2_folder)
    assert f"{name} in model.safetensors has shape (3,), and its config.json says" in problem


def test_a_context_longer_than_the_pretrained_positions_is_refused(gpt2_folder: Path) -> None:
    [problem] = pretrained_problems(gpt2_folder, context_length=65)
    assert "needs 65 positions" in problem
    assert "use at most 64" in problem


def test_heads_of_odd_size_know_no_relative_time(tmp_path: Path) -> None:
    config = GPT2Config(n_layer=1, n_head=2, n_embd=6, n_positions=64, vocab_size=4)
    GPT2Model(config).save_pretrained(tmp_path)
    [problem] = pretrained_problems(tmp_path)
    assert "has 3 per head; use time=none or time=absolute" in problem


def test_truncated_weights_are_refused(gpt2_folder: Path) -> None:
    weights = gpt2_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    [problem] = pretrained_problems(gpt2_folder)
    assert "model.safetensors is truncated" in problem


@pytest.mark.parametrize("content", [b"", b"\x01", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]"])
def test_weights_of_another_format_are_refused(gpt2_folder: Path, content: bytes) -> None:
    (gpt2_folder / "model.safetensors").write_bytes(content)
    [problem] = pretrained_problems(gpt2_folder)
    assert "no usable GPT-2" in problem


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{"model_type": "llama"}', "for model_type llama, not gpt2"),
        ('{"model_type": "gpt2", "n_layer": 1}', "does not give n_head, n_embd, n_positions"),
        ("{", "no usable GPT-2"),
        ("[]", "for model_type None"),
    ],
)
def test_a_config_of_another_model_is_refused(gpt2_folder: Path, config: str, reason: str) -> None:
    (gpt2_folder / "config.json").write_text(config, encoding="utf-8")
    [problem] = pretrained_problems(gpt2_folder)
    assert reason in problem


def test_a_folder_without_weights_is_refused(gpt2_folder: Path) -> None:
    (gpt2_folder / "model.safetensors").unlink()
    [problem] = pretrained_problems(gpt2_folder)
    assert "there is no model.safetensors" in problem


def test_what_no_bundle_can_hold_is_refused_before_a_run() -> None:
    assert problems_of_bundles(MLPConfig(), 28_224, 4) == []  # 84 x 84 pixels, four of them
    [line] = problems_of_bundles(MLPConfig(), 50_000, 4)
    assert "observations of 50,000 numbers" in line
    large = LLMPolicyConfig(n_layer=48, n_head=64, n_embd=4096)
    [line] = problems_of_bundles(large, 4, 2)
    assert "the net has more than 9 GiB of weights" in line
