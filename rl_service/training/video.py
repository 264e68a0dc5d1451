"""Draws an environment without a display and writes the frames as an mp4 file."""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio.v2 as imageio
import numpy as np
import numpy.typing as npt

from custom_models.text import one_line
from rl_service.common.errors import EnvError, OutputError
from rl_service.common.files import output_errors
from rl_service.config.settings import EnvSettings
from rl_service.rollout.envs import make_env

DEFAULT_FPS = 30

Env = gym.Env[Any, Any]
Frame = npt.NDArray[np.uint8]
AddFrame = Callable[[Env], None]
"""Draws an env as it stands and keeps the picture."""


def make_drawable_env(env: EnvSettings) -> Env:
    """Makes an environment that draws itself into arrays, with or without a display.

    Raises:
        EnvError: as `make_env`, or if no renderer works here.
    """
    _choose_renderer()
    made = make_env(env, render_mode="rgb_array")
    try:
        made.reset(seed=0)
        draw(made)
    except BaseException:
        _close_quietly(made)
        raise
    return made


@contextmanager
def mp4_video(path: Path, env: Env) -> Iterator[AddFrame]:
    """Opens a video that appears at `path` when the block ends well, and not at all otherwise.

    Args:
        path: File that ends in `.mp4`; an existing one is replaced.
        env: What will be drawn; its metadata has the frames per second.

    Yields:
        A function that draws an env as it stands and appends the picture.

    Raises:
        EnvError: if the env cannot be drawn.
        OutputError: if the name has another ending or the file cannot be written.
    """
    if path.suffix.lower() != ".mp4":
        raise OutputError(f"cannot write video {path}: only mp4 is written; end the name in .mp4")
    staged = path.with_name(f".{path.stem}.new.mp4")
    with output_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.touch()  # ffmpeg would report a folder that cannot be written as a broken pipe
        try:
            fps = env.metadata.get("render_fps") or DEFAULT_FPS
            # macro_block_size: ffmpeg needs even sizes; imageio's default would rescale to 16s.
            writer: Any = imageio.get_writer(staged, fps=fps, macro_block_size=2)
            with writer:
                yield lambda drawn: writer.append_data(draw(drawn))
            staged.replace(path)
        finally:
            staged.unlink(missing_ok=True)


def draw(env: Env) -> Frame:
    """The picture of an env that was made for `rgb_array`, (height, width, 3).

    Raises:
        EnvError: if there is none.
    """
    try:
        frame: Any = env.render()
    except Exception as error:  # OpenGL, SDL and environments each raise their own
        raise EnvError(f"{_cannot_draw(env)}: {one_line(error)}; {_REMEDY}") from error
    if not isinstance(frame, np.ndarray) or frame.ndim != 3:
        raise EnvError(f"{_cannot_draw(env)}: it has no render mode rgb_array; leave the video out")
    return frame


_REMEDY = (
    "install a software renderer (apt-get install libegl1 libgl1-mesa-dri, or libosmesa6), "
    "name it in MUJOCO_GL (egl or osmesa), or leave the video out"
)


def _cannot_draw(env: Env) -> str:
    name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
    return f"environment {name} cannot be drawn"


def _choose_renderer() -> None:
    """Headless drivers, unless the user chose or a display is there. Process-wide, once.

    Both libraries read these variables when they first draw.
    """
    if os.environ.get("DISPLAY") or not sys.platform.startswith("linux"):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")  # pygame opens the sound card, too
    if "MUJOCO_GL" not in os.environ and ctypes.util.find_library("EGL"):
        os.environ["MUJOCO_GL"] = "egl"
    os.environ.setdefault("MUJOCO_GL", "osmesa")


def _close_quietly(env: Env) -> None:
    """A renderer that failed to start often fails to close; the first error is the one to show."""
    try:
        env.close()
    except Exception:
        return
