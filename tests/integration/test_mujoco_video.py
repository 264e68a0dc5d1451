"""MuJoCo's renderer, each time in a process of its own: OpenGL is chosen once per process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import WriteTestBundle
from tests.support.videos import frames_of

SCRIPT = """
import pathlib, sys
from rl_service.common.errors import EnvError
from rl_service.training.evaluation import evaluate
from rl_service.policies import load_bundle

policy = load_bundle(sys.argv[1])
try:
    evaluate(policy, policy.spec.env, num_episodes=1, seed=0, video=pathlib.Path(sys.argv[2]))
except EnvError as error:
    print(error)
"""


def play(bundle: Path, video: Path, **environment: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "DISPLAY")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(bundle), str(video)],
        capture_output=True,
        text=True,
        check=False,
        env=inherited | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_mujoco_episode_is_filmed_or_the_missing_renderer_is_named(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "b", "HalfCheetah-v4", max_episode_steps=3)
    message = play(tmp_path / "b", tmp_path / "a.mp4")
    if message:  # a machine without EGL and OSMesa
        assert "HalfCheetah-v4 cannot be drawn" in message
        assert "MUJOCO_GL (egl or osmesa)" in message
    else:
        assert frames_of(tmp_path / "a.mp4").shape == (4, 480, 480, 3)


def test_a_renderer_that_does_not_work_is_one_clear_line(
    tmp_path: Path, write_test_bundle: WriteTestBundle
) -> None:
    write_test_bundle(tmp_path / "b", "HalfCheetah-v4", max_episode_steps=3)
    message = play(tmp_path / "b", tmp_path / "a.mp4", MUJOCO_GL="glfw")
    assert message.startswith("environment HalfCheetah-v4 cannot be drawn: ")
    assert message.endswith("or leave the video out")
    assert "\n" not in message
    assert os.listdir(tmp_path) == ["b"]
