"""A call that runs beside the caller's own work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """Starts a call in a daemon thread, so that nobody waits for it at exit.

    An exception stays with the call until its result is asked for.
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._result: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:
            self._error = error

    def wait(self) -> None:
        """Until the call has ended, well or not."""
        self._thread.join()

    def result(self) -> T:
        """What the call returned; raises what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set, since there was no error

    def result_or_none(self) -> T | None:
        """What the call returned; None if it raised."""
        self.wait()
        return self._result
