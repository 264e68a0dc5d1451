"""Sessions: bounded, forgotten in time, one commit a step, small."""

from __future__ import annotations

import gc
import pickle
import tracemalloc

import numpy as np
import pytest

from custom_models.spaces import ActionSpec
from custom_models.text_rows import read_row, text_row
from rl_service.serving.memory import longer, remembered
from rl_service.serving.shared import SessionState, SessionTable, TooManySessions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def after(state: SessionState, request_id: str = "r", memory: bytes = b"") -> SessionState:
    return state._replace(
        num_steps=state.num_steps + 1, last_request_id=request_id, memory=memory, last_reply=b"{}"
    )


def test_a_step_is_committed_once() -> None:
    table = SessionTable(2, 60.0)
    session = table.open_session(SessionState("lander", 3))
    first = table.read_session(session)
    assert first is not None and (first.policy, first.version, first.num_steps) == ("lander", 3, 0)
    assert table.commit_session(session, after(first))
    assert not table.commit_session(session, after(first, "another replica"))
    second = table.read_session(session)
    assert second is not None and second.last_request_id == "r"


def test_sessions_are_forgotten_after_their_last_use() -> None:
    clock = Clock()
    table = SessionTable(9, 60.0, clock)
    old, used = table.open_session(SessionState("p", 1)), table.open_session(SessionState("p", 1))
    clock.now = 50.0
    state = table.read_session(used)
    assert state is not None and table.commit_session(used, after(state))
    clock.now = 61.0
    assert table.read_session(old) is None
    assert not table.commit_session(old, after(state))
    assert table.close_session(old) is None
    assert table.num_sessions() == 1


def test_a_full_table_says_when_there_is_room() -> None:
    clock = Clock()
    table = SessionTable(1, 60.0, clock)
    session = table.open_session(SessionState("p", 1))
    clock.now = 20.0
    with pytest.raises(TooManySessions) as full:
        table.open_session(SessionState("p", 1))
    assert full.value.retry_after_s == 40
    assert pickle.loads(pickle.dumps(full.value)).retry_after_s == 40  # Ray sends it so
    table.close_session(session)
    assert table.open_session(SessionState("p", 1))


def test_ids_cannot_be_guessed() -> None:
    table = SessionTable(100, 60.0)
    ids = {table.open_session(SessionState("p", 1)) for _ in range(100)}
    assert len(ids) == 100
    assert all(len(session) >= 22 for session in ids)  # 128 bits


def test_the_memory_of_texts_takes_their_own_length() -> None:
    spec, memory = ActionSpec("discrete", 20), b""
    for t in range(9):
        memory = longer(memory, text_row(f"room {t}", [], 32_768), np.array([t]), 7)
    assert len(memory) < 10_000
    history = remembered(memory, text_row("now", [], 32_768), spec, 7)
    assert history is not None
    assert [read_row(row)[0] for row in history.obs[0]] == [
        *(f"room {t}" for t in range(2, 9)),
        "now",
    ]
    assert history.actions.tolist() == [list(range(2, 9))]


def test_an_idle_session_takes_4_kilobytes_and_its_history() -> None:
    count, history = 2000, 512
    table = SessionTable(count, 60.0)
    gc.collect()
    tracemalloc.start()
    for _ in range(count):
        session = table.open_session(SessionState("lunarlander", 1))
        state = table.read_session(session)
        assert state is not None
        reply = b'{"action": 1, "log_prob": -1.3862943649291992, "policy": "lunarlander"}' + bytes(
            9
        )
        table.commit_session(
            session, after(state)._replace(memory=bytes(history), last_reply=reply)
        )
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / count <= 4096 + history
