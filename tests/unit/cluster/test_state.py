"""The state file: whole or absent, with a token that nobody else can read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from rl_service.cluster import state
from rl_service.cluster.state import LocalCluster, Node
from rl_service.common.errors import ClusterError, OutputError

CLUSTER = LocalCluster(
    id="0123",
    address="127.0.0.1:6379",
    dashboard_url="http://127.0.0.1:8265",
    folder="/tmp/rlc-0123",
    started_at="2030-01-01T00:00:00+00:00",
    nodes=[Node(name="head", pid=1, num_cpus=2)],
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    monkeypatch.setenv("RL_SERVICE_HOME", str(home))
    return home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_saved_cluster_is_loaded_and_forgotten(home: Path) -> None:
    assert state.load_cluster() is None
    state.create_token()
    state.save_cluster(CLUSTER)
    assert state.load_cluster() == CLUSTER
    state.forget_cluster()
    assert state.load_cluster() is None
    assert list(home.iterdir()) == []


def test_the_state_does_not_hold_the_token() -> None:
    token = state.create_token().read_text()
    state.save_cluster(CLUSTER)
    assert len(token) == 64
    assert token not in state.state_path().read_text()


def test_token_and_secrets_are_for_their_owner_alone_whatever_the_umask(home: Path) -> None:
    first = state.create_token().read_text()
    state.write_secret(state.secrets_folder() / "job.json", "{}")
    assert mode(state.token_path()) == mode(state.secrets_folder() / "job.json") == 0o600
    assert mode(home) == 0o700
    assert state.create_token().read_text() != first


def test_a_secret_never_goes_into_a_file_that_exists(home: Path) -> None:
    home.mkdir()
    (home / "there").write_text("")
    with pytest.raises(OutputError, match="file exists"):
        state.write_secret(home / "there", "secret")


@pytest.mark.parametrize("text", ["", "{", '{"id": "x"}', CLUSTER.model_dump_json()[:-2]])
def test_a_damaged_state_is_one_line_that_names_the_file(home: Path, text: str) -> None:
    home.mkdir()
    state.state_path().write_text(text)
    with pytest.raises(ClusterError, match=r"cluster\.json cannot be read: it is damaged"):
        state.load_cluster()


def test_one_command_at_a_time_may_change_the_cluster() -> None:
    with (
        state.only_one(),
        pytest.raises(ClusterError, match="another rl-service is starting or ending"),
        state.only_one(),
    ):
        pass
    with state.only_one():
        pass
