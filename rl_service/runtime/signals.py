"""Ctrl-C and SIGTERM: an interruption, or while a run iterates a polite request first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Lets SIGTERM raise KeyboardInterrupt, as SIGINT does.

    Also where a shell has started the process with SIGINT ignored, as with `&`. Outside the main
    thread nothing changes.
    """
    with _handlers(_interrupt):
        yield


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets SIGINT and SIGTERM pass without effect: what is half done here helps nobody."""
    with _handlers(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handlers(handler: signal._HANDLER) -> Iterator[None]:
    """Puts a handler in place; not outside the main thread, where Python delivers no signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class StopRequest:
    """Notes the first SIGINT or SIGTERM, so that a run can finish its step and checkpoint.

    The second one raises KeyboardInterrupt at once. Outside the main thread, where Python
    delivers no signals, it never sees a request.

    Args:
        on_request: called at the first signal, in a thread of its own: what it prints to may be
            in use by the thread that the signal interrupts.
    """

    def __init__(self, on_request: Callable[[], None] = lambda: None) -> None:
        self.signal_name: str | None = None
        self._on_request = on_request
        self._interrupts_at_once = False
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    @property
    def requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self.signal_name is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._receive) for number in _SIGNALS}
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """In this block the first signal, too, raises KeyboardInterrupt: nothing is lost by it."""
        self._interrupts_at_once = True
        try:
            yield
        finally:
            self._interrupts_at_once = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.signal_name = signal.Signals(number).name
        if self._interrupts_at_once:
            raise KeyboardInterrupt
        threading.Thread(target=self._on_request).start()
