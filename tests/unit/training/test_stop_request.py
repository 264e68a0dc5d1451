"""Ctrl-C and SIGTERM: a request first, an interruption the second time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from rl_service.runtime.signals import StopRequest

PROGRAM = """
import time
from rl_service.runtime.signals import StopRequest

with StopRequest() as stop:
    try:
        print("ready", flush=True)
        while not stop.requested:
            time.sleep(0.01)
        print("asked by", stop.signal_name, flush=True)
        time.sleep(30)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_interrupts(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"asked by {number.name}\n"
        sent_at = time.monotonic()
        process.send_signal(number)
        assert process.stdout.readline() == "interrupted\n"
        assert time.monotonic() - sent_at < 5
    assert process.returncode == 0


def test_nothing_is_requested_without_a_signal() -> None:
    with StopRequest() as stop:
        assert not stop.requested
        assert stop.signal_name is None


def test_the_first_signal_is_answered_from_a_thread_of_its_own() -> None:
    answered = threading.Event()
    threads = []

    def answer() -> None:
        threads.append(threading.current_thread())
        answered.set()

    with StopRequest(answer) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert answered.wait(60)
        assert stop.requested
    assert threads != [threading.main_thread()]


def test_the_first_signal_interrupts_what_may_be_cut_short() -> None:
    with StopRequest() as stop:
        with pytest.raises(KeyboardInterrupt), stop.at_once():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
        assert stop.requested


def test_the_handlers_of_before_are_back_at_the_end() -> None:
    before = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        while not stop.requested:
            time.sleep(0.001)
        assert stop.signal_name == "SIGTERM"
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == before


def test_a_thread_may_use_it_although_signals_never_reach_it() -> None:
    requests = []

    def use() -> None:
        with StopRequest() as stop:
            requests.append(stop.requested)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert requests == [False]
