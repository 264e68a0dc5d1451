"""A stranger's bundle costs who looks at it neither time nor memory, whatever is in it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from custom_models.configs import GPT2CriticConfig, LLMPolicyConfig, MLPConfig
from custom_models.model_config import ModelConfig
from rl_service.common.errors import BundleError
from rl_service.policies import load_bundle
from rl_service.policies.registry import PolicyRegistry
from rl_service.serving.sources import FolderSource
from tests.conftest import Command, WriteTestBundle, write_untrained_bundle
from tests.support.bundles import CARDS, HOSTILE

CPU_S = 2.0
MEMORY_BYTES = 50 * 2**20
CASES = pytest.mark.parametrize("name", HOSTILE)
MODELS: list[ModelConfig] = [
    MLPConfig(hidden_sizes=(32, 16), critic_hidden_sizes=(8,)),
    MLPConfig(log_std="state"),
    GPT2CriticConfig(context_length=8, time="absolute", max_timesteps=100),
    LLMPolicyConfig(n_layer=1, n_head=2, n_embd=16, critic="gpt2"),
    LLMPolicyConfig(n_layer=1, n_head=2, n_embd=16, finetune="lora", critic="hidden_state"),
]


def memory_bytes(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return 1024 * int(line.split()[1])
    raise KeyError(key)


@contextmanager
def cheap() -> Iterator[None]:
    """The block takes little time of the CPU, and little memory at any moment."""
    Path("/proc/self/clear_refs").write_text("5")  # the highest use begins again
    before, started = memory_bytes("VmRSS"), time.process_time()
    yield
    assert time.process_time() - started < CPU_S
    assert memory_bytes("VmHWM") - before < MEMORY_BYTES


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle; what a first load imports is no part of what a bundle costs."""
    folder = tmp_path_factory.mktemp("good")
    for i, model in enumerate(MODELS):
        write_untrained_bundle(folder / str(i), model=model)
        load_bundle(folder / str(i))
    write_untrained_bundle(folder / "bundle")
    return folder / "bundle"


def made(good: Path, folder: Path, name: str) -> Path:
    shutil.copytree(good, folder)
    HOSTILE[name](folder)
    return folder


def loaded(folder: Path) -> object:
    return load_bundle(folder)


def registered(folder: Path) -> object:
    return PolicyRegistry(str(folder.with_name("registry"))).register(folder, "stranger")


def served(folder: Path) -> object:
    source = FolderSource("stranger", folder)
    return load_bundle(source.fetch(source.wanted()))


@CASES
@pytest.mark.parametrize("read", [loaded, registered, served])
def test_it_is_refused_at_once(
    good: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    read: Callable[[Path], object],
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # the cache lies below it
    folder = made(good, tmp_path / "bundle", name)
    if read is loaded and name in CARDS:
        load_bundle(folder)
        return
    with cheap(), pytest.raises(BundleError) as refused:
        read(folder)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000


@CASES
def test_a_registry_that_holds_it_does_not_export_it(good: Path, tmp_path: Path, name: str) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    version = registry.register(good, "stranger")
    stored = registry.fetch(version)
    shutil.rmtree(stored)
    made(good, stored, name)
    with cheap(), pytest.raises(BundleError):
        registry.export("stranger:1", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


@pytest.mark.parametrize(
    "command", [("evaluate",), ("serve", "--port", "0"), ("policies", "register")]
)
def test_commands_say_so_in_one_line(
    good: Path, rl_service: Command, in_tmp_path: Path, command: tuple[str, ...]
) -> None:
    for name in ("endless weights", "NaN as a score", "an environment that clears the terminal"):
        folder = made(good, in_tmp_path / name.replace(" ", "-"), name)
        assert str(folder) in rl_service(*command, str(folder)).refusal


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("env_id", ["CartPole-v1", "BipedalWalker-v3"])
def test_the_largest_size_of_weights_is_near_the_real_one(
    tmp_path: Path, write_test_bundle: WriteTestBundle, model: ModelConfig, env_id: str
) -> None:
    write_test_bundle(tmp_path / "b", env_id, model=model)
    size = (tmp_path / "b" / "policy.safetensors").stat().st_size
    most = load_bundle(tmp_path / "b").spec.max_weights_bytes
    assert size <= most <= 1.1 * size + 2 * 2**20
