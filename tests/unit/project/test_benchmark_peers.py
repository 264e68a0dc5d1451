"""Other public implementations in the benchmark `training`: which are measured, how they read."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests.benchmarks import peers
from tests.benchmarks.peers import PEERS, Peer, peer_candidates, peer_tables

SIZES = SimpleNamespace(num_envs=4, train_batch_size=64, minibatch_size=32, num_epochs=2)
SB3 = {"ours": [8.0, 12.0], "SB3 Dummy": [4.0, 4.0]}


def open_nothing(path: str, **arguments: Any) -> AbstractContextManager[Any]:
    return nullcontext(SimpleNamespace(train=lambda iterations: (path, arguments, iterations)))


def candidates(env_id: str) -> dict[str, Any]:
    with ExitStack() as stack:
        return peer_candidates(stack, open_nothing, 3, env_id, SIZES)


@pytest.mark.parametrize("what", ["packages", "programs"])
def test_a_peer_that_lacks_something_is_left_out(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Peer("nowhere:Training", {}, **{what: ("no_such_thing",)})
    there = Peer("here:Training", {"envs": "sync"}, packages=("gymnasium",))
    monkeypatch.setattr(peers, "PEERS", {"missing": missing, "there": there})
    found = candidates("CartPole-v1")
    assert list(found) == ["there"]
    arguments = {"env_id": "CartPole-v1", **vars(SIZES), "envs": "sync"}
    assert found["there"]() == ("tests.benchmarks.subjects.here:Training", arguments, 3)


def test_peers_are_measured_in_some_environments_only() -> None:
    assert {"CleanRL", "RLlib"} <= set(candidates("CartPole-v1"))
    assert candidates("BipedalWalker-v3") == {}


def test_a_record_without_peers_has_no_table_of_them() -> None:
    assert peer_tables({"CartPole-v1": SB3}, ["ours"]) == []


def test_tables_show_who_was_measured_and_name_the_fastest() -> None:
    cartpole = SB3 | {"RLlib": [2.0, 2.0], "CleanRL": [5.0, 5.0]}
    rates = {"CartPole-v1": cartpole, "HalfCheetah-v4": SB3 | {"RLlib": [2.0, 3.0]}, "other": SB3}
    fastest, each = peer_tables(rates, ["ours", "ours, EnvPool"])
    assert fastest.columns[1:] == ("ours", "fastest of theirs", "theirs", "ours / theirs")
    assert fastest.rows == [
        ("CartPole-v1", "10", "CleanRL", "5", "2.00 (1.60–2.40)"),
        ("HalfCheetah-v4", "10", "SB3 Dummy", "4", "2.50 (2.00–3.00)"),
    ]
    assert each.rows == [
        ("CartPole-v1", "CleanRL", "5", "2.00 (1.60–2.40)"),
        ("CartPole-v1", "RLlib", "2", "5.00 (4.00–6.00)"),
        ("HalfCheetah-v4", "RLlib", "2", "4.00 (4.00–4.00)"),
    ]


def test_each_of_our_variants_has_a_column_of_multiples() -> None:
    cartpole = SB3 | {"ours, EnvPool": [20.0, 20.0], "RLlib": [2.0, 2.0]}
    rates = {"CartPole-v1": cartpole, "HalfCheetah-v4": SB3 | {"RLlib": [2.0, 2.0]}}
    fastest, each = peer_tables(rates, ["ours", "ours, EnvPool"])
    multiples = ("2.50 (2.00–3.00)", "5.00 (5.00–5.00)")
    assert fastest.rows[0] == ("CartPole-v1", "10", "20", "SB3 Dummy", "4", *multiples)
    assert each.columns[3:] == ("ours / theirs", "ours, EnvPool / theirs")
    assert [row[4] for row in each.rows] == ["10.00 (10.00–10.00)", "–"]


def test_every_peer_gets_the_sizes_of_a_training() -> None:
    arguments = PEERS["RLlib"].arguments_for("CartPole-v1", SIZES)
    assert arguments == {"env_id": "CartPole-v1", **vars(SIZES), "num_env_runners": 2}
    theirs = PEERS["SBX"].arguments_for("CartPole-v1", SIZES)
    assert theirs["arguments"] == {"n_steps": 16, "batch_size": 32, "n_epochs": 2}
