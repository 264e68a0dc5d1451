"""A run registers its best policy, and the commands take it from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rl_service.config.settings import Settings
from rl_service.policies import load_bundle
from rl_service.policies.registry import PolicyRegistry
from rl_service.training.observer import TrainResult
from rl_service.training.run import Run
from rl_service.training.train import train
from tests.conftest import Command
from tests.support.recorder import Recorder
from tests.support.small_runs import small_settings
from tests.support.wandb_runs import environment, policy_artifact

ROOT = Path(__file__).parents[2]
NAME = "pendulum-v1-mlp-ppo"


def run_to_end(settings: Settings, observer: Recorder | None = None) -> TrainResult:
    run = Run.create(settings, command=[])
    return train(settings, observer=observer or Recorder(), run=run)


def with_tracking(settings: Settings, **changed: Any) -> Settings:
    tracking = settings.tracking.model_copy(update=changed)
    return settings.model_copy(update={"tracking": tracking})


@pytest.mark.usefixtures("local_ray")
def test_runs_become_versions_and_the_best_of_them_is_best(tmp_path: Path) -> None:
    settings = small_settings(output_dir=tmp_path, iterations=2)
    results = [run_to_end(settings.model_copy(update={"seed": seed})) for seed in (1, 2, 3)]
    assert [result.registered for result in results] == [f"{NAME}:{i}" for i in (1, 2, 3)]
    registry = PolicyRegistry(str(tmp_path / "policies"))
    versions = registry.versions(NAME)
    scores = [load_bundle(str(r.policy)).spec.evaluation["episode_return_mean"] for r in results]
    assert [version.episode_return_mean for version in versions] == scores
    assert registry.resolve(f"{NAME}@best").episode_return_mean == max(map(float, scores))


@pytest.mark.usefixtures("local_ray")
def test_a_stopped_run_registers_what_it_has(tmp_path: Path) -> None:
    class StopsItself(Recorder):
        def on_iteration(self, row: Mapping[str, Any]) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    result = run_to_end(small_settings(output_dir=tmp_path, iterations=9), StopsItself())
    assert (result.status, result.iterations, result.registered) == ("stopped", 1, f"{NAME}:1")


@pytest.mark.usefixtures("local_ray")
def test_a_registry_that_cannot_be_written_is_told_and_fails_no_run(tmp_path: Path) -> None:
    settings = small_settings(output_dir=tmp_path, iterations=2)
    observer = Recorder()
    result = run_to_end(with_tracking(settings, registry="/dev/null/policies"), observer)
    assert (result.status, result.registered) == ("finished", None)
    assert result.policy is not None
    [message] = observer.messages
    reason = "cannot write the policy registry /dev/null/policies: not a directory; "
    assert message.startswith(f"the best policy is not in the registry: {reason}")
    assert not (tmp_path / "policies").exists()


def told(rl_service: Command, *arguments: str) -> list[str]:
    """Lines on standard output of a command that succeeds."""
    done = rl_service(*arguments)
    assert (done.status, done.err) == (0, ""), done
    return done.out.splitlines()


def test_from_training_to_production_and_back(
    rl_service: Command, tmp_path: Path, ray_address: str
) -> None:
    command = (
        "train -e Pendulum-v1 -m mlp -ne 1 --set algorithm.train_batch_size=256 "
        "--set resources.num_env_runners=0 --set evaluation.num_episodes=1 "
        "--set evaluation.final_num_episodes=1 --wandb-project tests --json"
    )

    def train(*more: str) -> list[str]:
        """In a process, since W&B reads variables when it is imported."""
        paths = {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": ray_address, "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, "-m", "rl_service.cli", *command.split(), *more],
            cwd=tmp_path,
            env=environment(tmp_path, **paths),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.splitlines()

    lines = train()
    assert f"In the registry: {NAME}:1" in lines
    trained = json.loads(lines[-1])
    assert trained["registered"] == f"{NAME}:1"
    artifact = policy_artifact(tmp_path)
    assert artifact.name == NAME
    assert "best" in artifact.aliases
    train("--seed", "2")

    listed = json.loads(told(rl_service, "policies", "list", "--json")[-1])
    assert listed["registry"] == str(tmp_path / "policies")
    assert [(row["name"], row["version"]) for row in listed["policies"]] == [(NAME, 2), (NAME, 1)]
    assert told(rl_service, "policies", "promote", f"{NAME}:1")[0].startswith(f"{NAME}:1 is now")
    refusal = rl_service("policies", "rollback", NAME).refusal
    assert "has no previous version" in refusal
    told(rl_service, "policies", "promote", f"{NAME}:2")
    shown = json.loads(told(rl_service, "policies", "show", NAME, "--json")[-1])
    assert shown["version"] == 2
    assert "production" in shown["aliases"]
    assert f"{NAME}:1 is now" in told(rl_service, "policies", "rollback", NAME)[0]

    assert told(rl_service, "policies", "export", f"{NAME}:1", "mine") == ["mine"]
    scores = [
        json.loads(told(rl_service, "evaluate", policy, "-ne", "2", "--json")[-1])
        for policy in (f"{NAME}@production", f"{NAME}:1", NAME, "mine", trained["policy"])
    ]
    assert len({score["episode_return_mean"] for score in scores}) == 1


def test_the_policy_of_the_package_lands(rl_service: Command, tmp_path: Path) -> None:
    command = "evaluate zoo:lunarlander -ne 20 --seed 123 --json"
    result = json.loads(told(rl_service, *command.split())[-1])
    assert result["env"] == "LunarLander-v3"
    assert result["episode_return_mean"] >= 200  # what counts as solved
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("show nowhere", "policy nowhere is not in the registry"),
        ("show ../x", "'../x' is no policy name"),
        ("promote x:0", "'0' in policy 'x:0' is no version"),
        ("rollback x", "known: none yet; rl-service train registers its best"),
        ("export x there", "policy x is not in the registry"),
        ("list --root nonsense://x", "cannot reach the policy registry nonsense://x"),
        ("show", "Missing argument"),
        ("lst", "Did you mean 'list'"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    rl_service: Command, tmp_path: Path, arguments: str, part: str
) -> None:
    assert part in rl_service("policies", *arguments.split()).refusal
    assert list(tmp_path.iterdir()) == []


def test_an_empty_registry_is_listed_as_one(rl_service: Command, tmp_path: Path) -> None:
    [line] = told(rl_service, "policies", "list")
    assert line == f"registry: {tmp_path / 'policies'} (no policies yet)"
