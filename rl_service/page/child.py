"""The process of a play, seen from the server, and how it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

PLAY_FAILED: Final = "play_failed"
INVALID_REQUEST: Final = "invalid_request"
_PLAYER = "rl_service.page.player"
_MAX_REPLY_BYTES = 8 * 2**20
"""A picture and an observation take at most about 1 MB."""
_EXIT_WAIT_S = 2.0
"""Between the end of a process's output, or its kill, and its exit."""

Reply = dict[str, Any]


class PlayError(Exception):
    """A request to a play cannot be answered.

    Args:
        code: a word that programs can rely on.
        status: of HTTP.
        message: what is wrong, why, and what to do, in one line.
    """

    def __init__(self, code: str, status: int, message: str) -> None:
        super().__init__(message)
        self.code, self.status, self.message = code, status, message

    def __reduce__(self) -> tuple[type[PlayError], tuple[str, int, str]]:
        """It also comes out of an actor."""
        return PlayError, (self.code, self.status, self.message)

    @classmethod
    def failed(cls, message: str) -> PlayError:
        """The play is over because its process or its environment failed."""
        return cls(PLAY_FAILED, 503, message)

    @classmethod
    def invalid(cls, message: str) -> PlayError:
        """The request holds something that the play cannot use."""
        return cls(INVALID_REQUEST, 422, message)


class Child:
    """The process of a play, which answers one request after another."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.started_at = 0.0
        """On the clock of the event loop."""
        self._process: asyncio.subprocess.Process | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_killed = False
        self._num_sent = 0

    @property
    def is_dead(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    async def start(self) -> None:
        self.started_at = asyncio.get_running_loop().time()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", _PLAYER),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=_environment(),
                limit=_MAX_REPLY_BYTES,
                start_new_session=True,  # Ctrl-C is for the server, which then ends its plays
            )
        except OSError as error:
            raise PlayError.failed(f"no process can be started: {error.strerror}") from error
        if self._is_killed:
            self.kill()
            await self.wait()
            raise PlayError.failed("the play was ended before it had started")

    def end_at(self, moment: float, end: Callable[[], None]) -> None:
        """Replaces the moment at which `end` is called."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(moment, end)

    def kill(self) -> None:
        self._is_killed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None:
            # With what it has started, such as an encoder or an environment's own processes.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def wait(self) -> None:
        """Waits for the end of the process and of its pipes, if it has begun."""
        if self._process is None:
            return
        with suppress(TimeoutError):  # a pipe may be in the hands of a process that got away
            await asyncio.wait_for(self._process.wait(), _EXIT_WAIT_S)
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(OSError):
            await self._process.stdin.wait_closed()

    async def answer(self, request: dict[str, Any], timeout_s: float) -> Reply:
        """Sends a request and waits for its reply.

        Raises:
            PlayError: which the process has answered, or `play_failed` if it does not answer.
        """
        self._num_sent += 1
        try:
            text = json.dumps(request | {"number": self._num_sent})
        except (TypeError, ValueError, RecursionError):
            raise PlayError.invalid("the request holds something that is not JSON") from None
        try:
            async with asyncio.timeout(timeout_s):
                reply = await self._exchange(text, self._num_sent)
        except TimeoutError:
            raise PlayError.failed(
                f"the play gave no answer within {timeout_s:g} s, so it was ended; open another"
            ) from None
        except (OSError, EOFError, ValueError) as error:  # no answer, or half of one
            raise PlayError.failed(await self._how_it_ended()) from error
        if "error" in reply:
            raise PlayError(**reply["error"])
        answer: Reply = reply["answer"]
        return answer

    async def _exchange(self, text: str, number: int) -> Reply:
        assert self._process is not None
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(text.encode() + b"\n")
        await stdin.drain()
        while line := await stdout.readline():
            reply: Reply = json.loads(line)
            if reply["number"] == number:  # or else nobody waited for it to the end
                return reply
        raise EOFError

    async def _how_it_ended(self) -> str:
        assert self._process is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _EXIT_WAIT_S)
        status = self._process.returncode
        how = "" if status is None else f" with exit status {status}"
        if status is not None and status < 0:
            how = f" by {signal.Signals(-status).name}"
        return f"the play's process has ended{how}; open another"


def _environment() -> dict[str, str]:
    """Variables of a child: it finds the modules that this process finds, and uses one thread."""
    paths = [path or os.getcwd() for path in sys.path]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYGAME_HIDE_SUPPORT_PROMPT": "1",
    }
