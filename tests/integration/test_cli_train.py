"""`rl-service train` as a user runs it: the paper's words, resume, Ctrl-C, damaged checkpoints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rl_service.config.load import load_settings
from rl_service.training.run import Run
from tests.conftest import Command
from tests.support.rays import command_environment

COMMAND = (sys.executable, "-m", "rl_service.cli", "train")
ONE_PROCESS = ("--set", "resources.num_env_runners=0")
FEW_EPISODES = (
    "--set",
    "evaluation.num_episodes=2",
    "--set",
    "evaluation.final_num_episodes=2",
)


def train(*arguments: str, cwd: Path, ray: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=command_environment(ray),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def last_object(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_the_papers_command_trains_gpt2ppo_across_workers(tmp_path: Path) -> None:
    paper = "-m ppo_gpt -e LunarLander-v2 -ne 2 --seed 123"
    done = train(*paper.split(), *FEW_EPISODES, "--json", cwd=tmp_path)
    result = last_object(done)
    assert "LunarLander-v2 is no longer in gymnasium" in done.stdout
    assert (result["env"], result["model"]) == ("LunarLander-v3", "gpt2_critic")
    assert (result["seed"], result["iterations"], result["env_steps"]) == (123, 2, 4096)
    assert (Path(str(result["policy"])) / "policy.json").is_file()


def test_a_run_started_with_the_papers_long_flags_goes_on_by_its_id(
    tmp_path: Path, ray_address: str
) -> None:
    flags = "--model_name ppo_ex --env CartPole-v1 --num_epochs 1 --al_check_interval 1 --json"
    arguments = (*flags.split(), *ONE_PROCESS, *FEW_EPISODES)
    first = last_object(train(*arguments, cwd=tmp_path, ray=ray_address))
    run = Run.open(str(first["run"]))
    assert (first["iterations"], run.settings.evaluation.interval) == (1, 1)
    resume = ("--resume", run.run_id, "-ne", "3", "--json")
    second = last_object(train(*resume, cwd=tmp_path, ray=ray_address))
    assert (second["iterations"], second["env_steps"]) == (3, 3 * 2048)
    assert [row["training_iteration"] for row in run.read_progress()] == [1, 2, 3]


def test_ctrl_c_ends_with_a_checkpoint_and_status_130(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "-e", "CartPole-v1", "-m", "mlp", *ONE_PROCESS, *FEW_EPISODES],
        cwd=tmp_path,
        env=command_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/*/progress.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "--resume" in out
    [config] = tmp_path.glob("runs/*/*/config.yaml")
    assert Run.open(config.parent).checkpoints.latest() is not None


def run_with_checkpoint(folder: Path, content: bytes) -> tuple[Run, Path]:
    """A run whose only training state is `content`."""
    overrides = ["resources.num_env_runners=0", f"tracking.output_dir={folder}"]
    settings = load_settings(env="CartPole-v1", model="mlp", overrides=overrides).settings
    run = Run.create(settings, command=[])

    def write(checkpoint: Path) -> None:
        (checkpoint / "training_state.pt").write_bytes(content)

    return run, run.checkpoints.save(1, write) / "training_state.pt"


@pytest.mark.usefixtures("local_ray")
def test_a_foreign_checkpoint_is_refused_in_one_line(tmp_path: Path, rl_service: Command) -> None:
    run, state = run_with_checkpoint(tmp_path, b"")  # torch's error for it has no text
    done = rl_service("train", "--resume", str(run.path))
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert f"error: {state} cannot be read" in done.err


@pytest.mark.usefixtures("local_ray")
def test_a_truncated_checkpoint_is_refused_in_one_line(tmp_path: Path, rl_service: Command) -> None:
    run, state = run_with_checkpoint(tmp_path, b"0123456789")
    state.write_bytes(b"01234")
    done = rl_service("train", "--resume", str(run.path))
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "is damaged: training_state.pt has 5 bytes instead of 10" in done.err
