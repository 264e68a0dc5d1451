"""Signals while Ray Tune runs."""

from __future__ import annotations

import os
import signal
import time

from rl_service.tuning.tune_process import Stopping


def test_a_request_is_noted_and_tunes_own_handler_does_not_stay() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    with Stopping() as stopping:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as Tune does
        os.kill(os.getpid(), signal.SIGTERM)
        while not stopping.requested:
            time.sleep(0.001)
    assert [signal.getsignal(number) for number in numbers] == before
