"""Reads videos back."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import numpy.typing as npt


def frames_of(path: Path) -> npt.NDArray[Any]:
    """All frames (N, height, width, 3); imageio's own reader leaves its pipes open."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path)]
    raw = [*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(raw, capture_output=True, check=True)
    size = re.search(r"Video: .* (\d+)x(\d+)", done.stderr.decode())
    assert size is not None
    width, height = map(int, size.groups())
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)
