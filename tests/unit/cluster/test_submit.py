"""What is refused before anything is sent, and what a cluster elsewhere does not get."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from rl_service.cluster.dashboard import Connection, Dashboard, Versions
from rl_service.cluster.state import LocalCluster, Node
from rl_service.cluster.submit import Resources, submit
from rl_service.common.errors import ClusterError, JobError, RLServiceError

LOCAL = LocalCluster(
    id="0123",
    address="127.0.0.1:7000",
    dashboard_url="http://127.0.0.1:7001",
    folder="/tmp/rlc-0123",
    started_at="2030-01-01T00:00:00+00:00",
    nodes=[Node(name="head", pid=1, num_cpus=2), Node(name="worker-1", pid=2, num_cpus=4)],
)


class OtherVersions(Dashboard):
    """A cluster of other versions than can be installed beside ours."""

    def __init__(self, ray: str, python: str) -> None:
        super().__init__("http://cluster.example:8265")
        self.found = Versions(ray, python)

    def versions(self) -> Versions:
        return self.found


OURS = (version("ray"), platform.python_version())


def refusal(
    *arguments: str,
    versions: tuple[str, str] = OURS,
    local: LocalCluster | None = None,
    output_dir: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
) -> RLServiceError:
    connection = Connection(OtherVersions(*versions), local, "")
    with pytest.raises(RLServiceError) as caught:
        submit(
            connection,
            arguments[0],
            arguments[1:],
            name=None,
            output_dir=output_dir,
            resources=Resources(cpus, gpus),
            environment={},
        )
    return caught.value


@pytest.mark.parametrize("versions", [("2.40.0", OURS[1]), (OURS[0], "3.10.1")])
def test_other_versions_are_told_with_both_sides(
    in_tmp_path: Path, versions: tuple[str, str]
) -> None:
    error = refusal("train", versions=versions, output_dir="/data")
    assert isinstance(error, ClusterError)
    assert f"runs Ray {versions[0]} on Python {versions[1]}, and this is Ray {OURS[0]}" in str(
        error
    )


def test_results_need_a_folder_that_lasts_on_a_cluster_elsewhere(in_tmp_path: Path) -> None:
    error = refusal("train", "-e", "CartPole-v1")
    assert isinstance(error, JobError)
    assert "give a folder that all nodes share with -o" in str(error)
    assert "must be an absolute path on the cluster" in str(refusal("train", output_dir="data"))


def test_more_cpus_than_any_node_has_are_refused_where_no_node_can_join(in_tmp_path: Path) -> None:
    error = refusal("train", local=LOCAL, cpus=4.5)
    assert "--cpus 4.5 fit on no node of the local cluster, whose largest has 4" in str(error)
    assert "--gpus -1 is negative" in str(refusal("train", local=LOCAL, gpus=-1.0))
