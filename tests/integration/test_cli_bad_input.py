"""Bad input to a command is one clear line and status 2, with nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from custom_models.configs import MODELS
from rl_service.config.algorithms import ALGORITHMS
from tests.conftest import Command, WriteTestBundle

ROOT = Path(__file__).parents[2]


def refusals(rl_service: Command, *arguments: str) -> list[str]:
    """The lines on standard error of a command that must be refused and write nothing."""
    before = sorted(Path.cwd().rglob("*"))
    done = rl_service(*arguments)
    assert (done.status, done.out) == (2, ""), done
    assert sorted(Path.cwd().rglob("*")) == before
    lines = done.err.splitlines()
    assert all(line.startswith("error: ") for line in lines), done
    return lines


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ("-e LunrLander-v3", ["LunrLander-v3 is unknown", "did you mean LunarLander-v3?"]),
        ("-m gpt3", ["unknown model gpt3", "known: gpt2_critic, llm_policy, mlp"]),
        ("-a a3c", ["unknown algorithm a3c", "known: a2c, ppo, trpo"]),
        ("--set algorithm.gama=1", ["unknown setting algorithm.gama", "algorithm.gamma?"]),
        ("--set algorithm.actor_lr=-1", ["algorithm.actor_lr=-1", "greater than 0"]),
        ("--set algorithm.gamma=nan", ["algorithm.gamma='nan'", "finite number"]),
        ("--seed -1", ["seed=-1", "greater than or equal to 0"]),
        ("--seed 5000000000", ["seed=5000000000", "less than 2147483648"]),
        ("-ne 0", ["stop.iterations=0", "greater than 0"]),
        ("-ne many", ["--iterations", "valid integer"]),
        ("-e CliffWalking-v1", ["has no time limit", "set env.max_episode_steps"]),
        ("-e CarRacing-v3", ["is an image", "env.flatten_images=true"]),
        ("-e no_module:Env", ["no_module cannot be imported", "PYTHONPATH"]),
        ("--set algorithm.minibatch_size=4096", ["minibatch_size=4096 is larger than", "2048"]),
        (
            "--set model.context_length=600 --set model.n_positions=512",
            ["600 positions", "context_length <= 512"],
        ),
        ("--set model.n_head=7", ["n_embd=64 is not divisible by n_head=7", "n_embd=63"]),
        (
            "--set model.pretrained=nowhere",
            ["nowhere holds no usable GPT-2", "nor in the store", "config.json"],
        ),
        ("--set resources.num_env_runners=64", ["need 64 CPUs, and there are", "use at most"]),
        ("-o /dev/null/x", ["/dev/null/x cannot be written", "--output-dir"]),
        ("--config nowhere.yaml", ["nowhere.yaml does not exist"]),
        ("--resume nowhere", ["no run 'nowhere'"]),
        ("--resume nowhere -m mlp", ["--resume takes its settings from the run, so model"]),
        ("--sed 1", ["No such option: --sed", "--seed"]),
        ("surplus", ["unexpected extra argument", "train --help"]),
    ],
)
def test_bad_input_to_train_is_one_line(
    rl_service: Command, arguments: str, parts: list[str]
) -> None:
    [line] = refusals(rl_service, "train", *arguments.split())
    for part in parts:
        assert part in line


def test_all_problems_are_told_at_once_one_on_each_line(rl_service: Command) -> None:
    wrong = "-e CartPol-v1 -m gpt3 --seed -1 --set algorithm.gama=1"
    lines = refusals(rl_service, "train", *wrong.split())
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ("", "give one policy"),
        ("nowhere", "nowhere is no folder here, and policy nowhere is not in the registry"),
        ("no/where", "policy no/where does not exist"),
        ("nowhere@best", "policy nowhere is not in the registry"),
        ("zoo:lunarlandr", "did you mean zoo:lunarlander?"),
        ("zoo:../..", "known: zoo:acrobot-ppo, zoo:bipedalwalker-ppo"),
        (". -f .", "give one policy"),
        (". -ne 0", "--num-episodes=0 is too small"),
        (". --seed 99999999999999999999", "too large; give at most 2147483647"),
        (".", "policy.json"),
    ],
)
def test_bad_input_to_evaluate_is_one_line(rl_service: Command, arguments: str, part: str) -> None:
    [line] = refusals(rl_service, "evaluate", *arguments.split())
    assert part in line


@pytest.mark.parametrize("file", ["policy.safetensors", "policy.json"])
def test_a_truncated_bundle_is_refused_in_one_line(
    rl_service: Command, tmp_path: Path, write_test_bundle: WriteTestBundle, file: str
) -> None:
    write_test_bundle(tmp_path / "bundle")
    damaged = tmp_path / "bundle" / file
    damaged.write_bytes(damaged.read_bytes()[:-20])
    [line] = refusals(rl_service, "evaluate", "bundle")
    assert file in line


def test_a_video_in_a_folder_that_cannot_be_written_is_refused_in_one_line(
    rl_service: Command, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "bundle")
    [line] = refusals(rl_service, "evaluate", "bundle", "--video", "/dev/null/x.mp4")
    assert "/dev/null/x.mp4" in line


def test_an_unknown_command_names_the_nearest(rl_service: Command) -> None:
    [line] = refusals(rl_service, "trian")
    assert "Did you mean 'train'" in line


@pytest.mark.parametrize("command", ["train", "evaluate", "policies", "doctor"])
def test_every_command_has_help(rl_service: Command, command: str) -> None:
    done = rl_service(command, "--help")
    assert done.status == 0
    assert done.out.startswith(f"Usage: rl-service {command}")


def test_the_help_of_train_names_every_model_and_algorithm(rl_service: Command) -> None:
    shown = rl_service("train", "--help").out
    for name in (*MODELS.ours, *ALGORITHMS.ours):
        assert name in shown


def test_help_loads_neither_torch_nor_ray() -> None:
    code = (
        "import sys; from rl_service.cli.app import main; main(['--help']); "
        "print(sorted({'torch', 'ray', 'gymnasium', 'rich.table'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_evaluate_prints_a_table_and_one_json_object_on_the_last_line(
    rl_service: Command, tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "bundle", "Pendulum-v1", max_episode_steps=5)
    paper = "evaluate -f bundle --num_episodes 3 --running_rew_len 2 --seed 7 --json"
    done = rl_service(*paper.split())
    assert (done.status, done.err) == (0, "")
    result = json.loads(done.out.splitlines()[-1])
    assert result["episodes"] == 3
    assert (result["env"], result["model"], result["seed"]) == ("Pendulum-v1", "mlp", 7)
    again = rl_service(*["evaluate", "bundle", "-ne", "3", "--seed", "7", "--json"])
    assert json.loads(again.out.splitlines()[-1]) == result


def test_a_process_has_the_status_and_the_streams_of_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rl_service.cli", "train", "-ne", "0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: stop.iterations=0 ")
    assert list(tmp_path.iterdir()) == []
