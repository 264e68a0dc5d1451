"""Which cluster is meant, and whose token it gets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_service.cluster import nodes, state
from rl_service.cluster.dashboard import Connection, find_cluster
from rl_service.cluster.state import LocalCluster, Node
from rl_service.common.errors import ClusterError

REMOTE = "http://cluster.example:8265"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_SERVICE_HOME", str(tmp_path / "rl"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A cluster that is up as far as its files and the marks of processes tell; its token."""
    monkeypatch.setattr(nodes, "_environment", lambda pid: {b"RL_SERVICE_CLUSTER_ID=0123"})
    token = state.create_token().read_text()
    state.save_cluster(
        LocalCluster(
            id="0123",
            address="127.0.0.1:7000",
            dashboard_url="http://127.0.0.1:7001",
            folder="/tmp/rlc-0123",
            started_at="2030-01-01T00:00:00+00:00",
            nodes=[Node(name="head", pid=os.getpid(), num_cpus=2)],
        )
    )
    yield token
    state.forget_cluster()


def sent_token(connection: Connection) -> str | None:
    header = connection.dashboard.headers.get("Authorization")
    return None if header is None else header.removeprefix("Bearer ")


def test_without_an_address_the_local_cluster_is_meant_and_its_token_sent(local: str) -> None:
    found = find_cluster(None, {"RAY_AUTH_TOKEN": "of another cluster"})
    assert found.dashboard.url == "http://127.0.0.1:7001"
    assert (found.local is not None, sent_token(found), found.flag) == (True, local, "")


@pytest.mark.parametrize(
    "address", ["127.0.0.1:7001", "http://localhost:7001/", "127.0.0.1:7000", "localhost:7000"]
)
def test_the_local_cluster_is_known_by_each_of_its_addresses(local: str, address: str) -> None:
    for found in (find_cluster(address, {}), find_cluster(None, {"RAY_ADDRESS": address})):
        assert found.dashboard.url == "http://127.0.0.1:7001"
        assert (found.local is not None, sent_token(found)) == (True, local)


@pytest.mark.parametrize("address", ["localhost", "127.0.0.1", "http://LocalHost/"])
def test_without_a_port_it_is_the_dashboard_s_usual_one(local: str, address: str) -> None:
    assert find_cluster(address, {}).local is None
    cluster = state.load_cluster()
    assert cluster is not None
    usual = cluster.model_copy(update={"dashboard_url": "http://127.0.0.1:8265"})
    state.save_cluster(usual)
    found = find_cluster(address, {})
    assert (found.dashboard.url, found.local) == (usual.dashboard_url, usual)
    assert sent_token(found) == local


def test_a_host_whose_name_ends_like_this_machine_s_is_another_one(local: str) -> None:
    found = find_cluster("my-localhost:7001", {})
    assert (found.dashboard.url, found.local) == ("http://my-localhost:7001", None)


def test_a_damaged_state_of_the_local_cluster_keeps_nobody_from_others(local: str) -> None:
    state.state_path().write_text("{")
    assert find_cluster(REMOTE, {}).dashboard.url == REMOTE
    for address in (None, "127.0.0.1:7001"):
        with pytest.raises(ClusterError, match=r"cluster\.json cannot be read: it is damaged"):
            find_cluster(address, {})


def test_the_address_goes_before_the_environment_and_that_before_the_local_cluster(
    local: str,
) -> None:
    environment = {"RAY_API_SERVER_ADDRESS": "http://first:1", "RAY_ADDRESS": "http://second:2"}
    assert find_cluster(REMOTE, environment).dashboard.url == REMOTE
    assert find_cluster(None, environment).dashboard.url == "http://first:1"
    del environment["RAY_API_SERVER_ADDRESS"]
    found = find_cluster(None, environment)
    assert (found.dashboard.url, found.local) == ("http://second:2", None)


def test_another_cluster_never_gets_the_local_token(local: str) -> None:
    assert sent_token(find_cluster(REMOTE, {})) is None


def test_a_token_comes_from_its_variable_else_its_file_else_ray_s_own_file(tmp_path: Path) -> None:
    named, own = tmp_path / "token", tmp_path / ".ray" / "auth_token"
    own.parent.mkdir()
    named.write_text("named\n")
    own.write_text("own")
    both = {"RAY_AUTH_TOKEN": "given", "RAY_AUTH_TOKEN_PATH": str(named)}
    assert sent_token(find_cluster(REMOTE, both)) == "given"
    assert sent_token(find_cluster(REMOTE, {"RAY_AUTH_TOKEN_PATH": str(named)})) == "named"
    assert sent_token(find_cluster(REMOTE, {"RAY_AUTH_MODE": "token"})) == "own"
    assert sent_token(find_cluster(REMOTE, {})) is None


def test_a_token_that_cannot_be_read_is_one_line() -> None:
    with pytest.raises(ClusterError, match="the token in /nowhere cannot be read: No such file"):
        find_cluster(REMOTE, {"RAY_AUTH_TOKEN_PATH": "/nowhere"})


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("host", "http://host:8265"),
        ("https://host", "https://host:443"),
        ("[::1]:9", "http://[::1]:9"),
    ],
)
def test_addresses_may_be_short(given: str, url: str) -> None:
    assert find_cluster(given, {}).dashboard.url == url


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ray://host:10001", "is for Ray Client, and jobs go over HTTP"),
        ("auto", "is not an address that jobs can be sent to"),
        ("http://a b", "is not an address that jobs can be sent to"),
        ("http://me:password@host", "is not an address that jobs can be sent to"),
        ("ftp://host", "is not an address that jobs can be sent to"),
        ("host:99999", "has a port that does not exist"),
        ("", "is not an address that jobs can be sent to"),
    ],
)
def test_what_is_no_address_is_told_with_what_to_give(address: str, message: str) -> None:
    with pytest.raises(ClusterError, match=f"{message}; give the dashboard's address"):
        find_cluster(address, {})


def test_without_any_cluster_it_says_how_to_get_one() -> None:
    with pytest.raises(ClusterError, match="start one here with rl-service cluster up, or give"):
        find_cluster(None, {})
