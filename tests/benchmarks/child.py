"""Subjects in processes of their own, told one at a time what to do.

Each starts once, stays warm between its turns, and sleeps while another one is measured. A subject
is a class named by its path, so that this process loads neither torch nor Ray.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import shutil
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

STOP_S = 60.0
"""How long a child may take to close."""


class ChildFailed(Exception):
    """A subject raised, or its process died; the text holds what it said."""


class Subject(Protocol):
    """What is measured."""

    def close(self) -> None:
        """Gives back what it holds."""


class OpenSubject(Protocol):
    """How a benchmark gets at a subject."""

    def __call__(self, path: str, **arguments: Any) -> contextlib.AbstractContextManager[Any]:
        """A context with `path`'s class, built with `arguments`; closed at its end."""


class Child:
    """A subject in another process: `child.method(...)` runs there and brings home the result.

    Args:
        path: `module:Class`.
        **arguments: of the class.

    Raises:
        ChildFailed: when the class or a method raises.
    """

    def __init__(self, path: str, **arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._folder = Path(tempfile.mkdtemp(prefix="rlb"))  # short: Ray's sockets live below it
        self._process = context.Process(
            target=_serve, args=(theirs, self._folder, path, arguments), name=path
        )
        self._process.start()
        theirs.close()
        try:
            self._receive()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: Any) -> Any:
            self._pipe.send((method, arguments))
            return self._receive()

        return call

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send(None)
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _receive(self) -> Any:
        try:
            failure, result = self._pipe.recv()
        except EOFError:
            log = (self._folder / "log.txt").read_text(encoding="utf-8", errors="replace")
            failure, result = f"the process died; its last words:\n{log[-2000:]}", None
        if failure:
            raise ChildFailed(f"{self._process.name}: {failure}")
        return result


def _serve(pipe: Connection, folder: Path, path: str, arguments: dict[str, Any]) -> None:
    """Main function of the child."""
    _prepare(folder)
    with contextlib.suppress(EOFError), contextlib.ExitStack() as stack:
        module, _, name = path.partition(":")
        subject = None
        request: Any = ("build", ())
        while request is not None:
            method, values = request
            try:
                if subject is None:
                    subject = getattr(importlib.import_module(module), name)(**arguments)
                    stack.callback(subject.close)
                    pipe.send((None, None))
                else:
                    pipe.send((None, getattr(subject, method)(*values)))
            except Exception:
                pipe.send((traceback.format_exc(), None))
            request = pipe.recv()


def _prepare(folder: Path) -> None:
    """One thread, a Ray of its own, and silence: all output goes to a file."""
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",  # the same for JAX
        "RAY_TMPDIR": str(folder),
        # RLlib imports JAX where it is installed, as it is for one of the other libraries: its
        # processes would start later and be larger than those of a user.
        "RLLIB_TEST_NO_JAX_IMPORT": "1",
    }
    os.environ.pop("RAY_ADDRESS", None)
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
