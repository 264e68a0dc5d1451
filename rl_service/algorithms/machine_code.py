"""The C code of this folder, compiled for the machine at hand.

The sources are compiled at first use and kept in the user's cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_FOLDER = Path(__file__).parent
_SOURCES = [*_FOLDER.glob("*.c"), *_FOLDER.glob("*.h")]
_CACHE = "~/.cache/rl-service/compiled"
_COMPILERS = ("cc", "gcc", "clang")
# No `-ffast-math`: NaN must stay NaN.
_FLAGS = ("-O3", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-shared", "-fPIC")
_COMPILE_TIMEOUT_S = 60.0


def library() -> ctypes.CDLL | None:
    """The compiled sources; None if they cannot be compiled here: see `build`."""
    return build()[0]


@cache
def build() -> tuple[ctypes.CDLL | None, str]:
    """Compiles the sources, or finds them compiled.

    Returns:
        The library, and why there is none; that is logged, too.
    """
    reasons = []
    for compiler in filter(None, map(shutil.which, _COMPILERS)):
        try:
            return _load(compiler), ""
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(f"{compiler}: {getattr(error, 'stderr', None) or error}".strip())
    reason = "; ".join(reasons) or f"no C compiler was found ({', '.join(_COMPILERS)})"
    logger.warning(
        "%s, so small nets learn several times slower; install a compiler, for example with "
        "apt-get install gcc",
        reason,
    )
    return None, reason


def _load(compiler: str) -> ctypes.CDLL:
    """Loads the library from the cache, where it is compiled if this machine has no other."""
    source = b"".join(path.read_bytes() for path in sorted(_SOURCES))
    parts = (source, compiler.encode(), " ".join(_FLAGS).encode(), _processor().encode())
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()[:24]
    with suppress(OSError, RuntimeError):  # no home, or one that cannot be read
        return _opened(Path(_CACHE).expanduser() / f"{name}.so")
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / f"{name}.so"
        _compile(compiler, made)
        loaded = _opened(made)  # it stays loaded when its file is gone
        with suppress(OSError, RuntimeError):
            _keep(made, Path(_CACHE).expanduser())
        return loaded


def _keep(made: Path, folder: Path) -> None:
    """Puts a file into the cache whole: another process may look for it."""
    folder.mkdir(parents=True, exist_ok=True)
    number, beside = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(made.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, folder / made.name)
    except OSError:
        os.unlink(beside)
        raise


def _opened(path: Path) -> ctypes.CDLL:
    opened = ctypes.CDLL(str(path))
    for room in (opened.feed_forward_room, opened.gpt2_room):
        room.restype = ctypes.c_int64
    for gradient in (opened.feed_forward_gradient, opened.gpt2_gradient):
        gradient.restype = ctypes.c_double
    opened.take_step.restype = ctypes.c_float
    opened.pass_over.restype = None
    return opened


def _compile(compiler: str, target: Path) -> None:
    """For this very processor if the compiler can."""
    sources = [str(path) for path in _SOURCES if path.suffix == ".c"]
    command = [compiler, *_FLAGS, "-o", str(target), *sources, "-lm"]
    run: Any = {"check": True, "capture_output": True, "text": True, "timeout": _COMPILE_TIMEOUT_S}
    try:
        subprocess.run([*command, "-march=native"], **run)
    except subprocess.CalledProcessError:
        subprocess.run(command, **run)


def _processor() -> str:
    """What this processor can do, since machines with different ones may share a home."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine() + platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
