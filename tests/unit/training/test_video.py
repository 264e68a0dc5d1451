"""Videos are written without a display and can be read again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_service.common.errors import EnvError, OutputError
from rl_service.config.settings import EnvSettings
from rl_service.policies import BundledPolicy, load_bundle
from rl_service.training.evaluation import evaluate
from rl_service.training.video import draw, mp4_video
from tests.conftest import WriteTestBundle
from tests.support.videos import frames_of

LANDER = EnvSettings(id="LunarLander-v3", max_episode_steps=20)


@pytest.fixture
def lander(tmp_path: Path, write_test_bundle: WriteTestBundle) -> BundledPolicy:
    write_test_bundle(tmp_path / "lander", "LunarLander-v3")
    return load_bundle(tmp_path / "lander")


def test_the_video_shows_every_step_of_episode_0(tmp_path: Path, lander: BundledPolicy) -> None:
    path = tmp_path / "videos" / "episode.mp4"
    result = evaluate(lander, LANDER, num_episodes=3, seed=7, video=path)
    frames = frames_of(path)
    assert len(frames) == result.lengths[0] + 1 == 21
    assert frames[0].shape == (400, 600, 3)
    assert any((frames[0] != frame).any() for frame in frames[1:])
    assert os.listdir(path.parent) == ["episode.mp4"]


def test_drawing_does_not_change_the_returns(tmp_path: Path, lander: BundledPolicy) -> None:
    drawn = evaluate(lander, LANDER, num_episodes=3, seed=7, video=tmp_path / "a.mp4")
    plain = evaluate(lander, LANDER, num_episodes=3, seed=7)
    assert drawn.returns.tolist() == plain.returns.tolist()


class Plotted(gym.Env[Any, Any]):
    """Draws a picture of odd size, or fails to."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012  # gymnasium's way
    picture: Any = np.zeros((63, 65, 3), np.uint8)

    def render(self) -> Any:
        if isinstance(self.picture, Exception):
            raise self.picture
        return self.picture


def test_a_picture_of_odd_size_grows_by_one_pixel(tmp_path: Path) -> None:
    with mp4_video(tmp_path / "odd.mp4", Plotted()) as add_frame:
        for _ in range(3):
            add_frame(Plotted())
    frames = frames_of(tmp_path / "odd.mp4")
    assert frames.shape == (3, 64, 66, 3)


def test_an_older_video_stays_when_an_episode_fails(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("old")
    with (
        pytest.raises(ZeroDivisionError),
        mp4_video(tmp_path / "a.mp4", Plotted()) as add_frame,
    ):
        add_frame(Plotted())
        raise ZeroDivisionError
    assert (tmp_path / "a.mp4").read_text() == "old"
    assert os.listdir(tmp_path) == ["a.mp4"]


def test_another_ending_than_mp4_is_refused(tmp_path: Path, lander: BundledPolicy) -> None:
    with pytest.raises(OutputError, match="only mp4 is written"):
        evaluate(lander, LANDER, num_episodes=1, seed=0, video=tmp_path / "a.gif")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, lander: BundledPolicy) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        OutputError, match=r"cannot write .*file/a\.mp4: .*choose another output folder"
    ):
        evaluate(lander, LANDER, num_episodes=1, seed=0, video=tmp_path / "file" / "a.mp4")


@pytest.mark.parametrize(
    ("picture", "problem"),
    [
        (RuntimeError("no\nOpenGL"), "Plotted cannot be drawn: no OpenGL; install a software"),
        (None, "Plotted cannot be drawn: it has no render mode rgb_array"),
    ],
)
def test_what_cannot_be_drawn_says_how_to_mend_it(picture: Any, problem: str) -> None:
    env = Plotted()
    env.picture = picture
    with pytest.raises(EnvError) as raised:
        draw(env)
    assert problem in str(raised.value)
    assert "\n" not in str(raised.value)
