"""Weights & Biases, really run: resumed, with policies, and where nobody answers."""

from __future__ import annotations

import json
import os
import pty
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import WriteTestBundle
from tests.support.wandb_runs import (
    TRAIN,
    curve,
    environment,
    offline_runs,
    policy_artifact,
    run,
    started,
    train,
)

LOG_POLICY = """
import sys
from pathlib import Path
from rl_service.config.settings import Settings, TrackingSettings
from rl_service.policies.registry import PolicyRegistry
from rl_service.training.run import Run
from rl_service.training.tracking import build_trackers

output_dir, bundle = sys.argv[1:]
version = PolicyRegistry(output_dir + "/registry").register(Path(bundle), "pendulum-v1-mlp-ppo")
tracking = TrackingSettings(output_dir=output_dir, tensorboard=False, wandb_project="tests")
settings = Settings(tracking=tracking)
(tracker,) = build_trackers(Run.create(settings, command=[]), settings, print)
tracker.log_policy(Path(bundle), version)
tracker.finish("finished")
print("done")
"""


def test_a_policy_is_kept_as_a_model_artifact_with_its_aliases(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "bundle", "Pendulum-v1")
    run(LOG_POLICY, tmp_path, str(tmp_path / "bundle"))
    artifact = policy_artifact(tmp_path)
    assert (artifact.name, artifact.type) == ("pendulum-v1-mlp-ppo", "model")
    assert "best" in artifact.aliases
    assert json.loads(artifact.metadata)["version"] == 1
    files = {entry.path for entry in artifact.manifest.contents}
    assert files == {"card.md", "policy.json", "policy.safetensors"}


def test_a_resumed_run_goes_on_with_the_same_wandb_run(tmp_path: Path) -> None:
    train(tmp_path)
    train(tmp_path)
    first, second = offline_runs(tmp_path)
    assert started(first).run_id == started(second).run_id
    steps = [step for folder in (first, second) for step, _ in curve(folder, "training_iteration")]
    assert steps == [100, 200, 300, 400, 500, 600]


def test_a_server_that_never_answers_costs_seconds_and_no_data(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        started_at = time.monotonic()
        output = train(tmp_path, WANDB_API_KEY="a" * 40, WANDB_BASE_URL=url)
    assert time.monotonic() - started_at < 40  # 3 of them are the limit of the first attempt
    assert "Weights & Biases cannot be reached" in output
    (folder,) = offline_runs(tmp_path)
    assert len(curve(folder, "episode_return_mean")) == 3


def test_an_unusable_key_keeps_the_run_offline(tmp_path: Path) -> None:
    output = train(tmp_path, WANDB_API_KEY="no key at all", WANDB_BASE_URL="http://127.0.0.1:9")
    assert "Weights & Biases cannot be reached" in output
    assert len(offline_runs(tmp_path)) == 1


def test_nothing_is_asked_at_a_terminal(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN, str(tmp_path)],
        env=environment(tmp_path),
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    try:
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        os.close(follower)
    shown = os.read(leader, 65536).decode()
    os.close(leader)
    assert "kept offline" in shown
    assert "Enter your choice" not in shown
