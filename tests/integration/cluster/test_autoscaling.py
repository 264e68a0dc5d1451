"""A training takes nodes of a cluster when it needs them, and gives them back."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from rl_service.training.progress_file import ProgressFile
from tests.support.clusters import UserCluster, wait_for


def test_a_training_takes_nodes_when_it_needs_them_and_gives_them_back(
    scaling_cluster: UserCluster,
) -> None:
    user = scaling_cluster
    wait_for(lambda: user.nodes() == ["head"], "nodes of earlier tests that go")
    slow = user.project / "slow"
    slow.touch()
    job = user.ask("submit", "elastic.yaml")["job"]
    [progress] = wait_for(lambda: list(user.project.glob("runs/*/*/progress.jsonl")), "a run")
    wait_for(lambda: rows_of(progress)[-1]["num_env_runners"] == 3, "workers on new nodes")
    assert len(user.nodes()) == 3
    assert rows_of(progress)[1]["num_env_runners_target"] == 3  # two iterations after the need
    slow.unlink()
    wait_for(lambda: rows_of(progress)[-1]["num_env_runners_target"] == 1, "workers that go")
    wait_for(lambda: user.nodes() == ["head"], "nodes that go")
    user.run("jobs", "stop", job)

    rows = rows_of(progress)
    steps = [row["num_env_steps_sampled_lifetime"] for row in rows]
    assert steps == [256 * row["training_iteration"] for row in rows]
    assert {row["weights_lag"] for row in rows} == {0}
    assert {row["num_worker_restarts"] for row in rows} == {0}
    targets = [row["num_env_runners_target"] for row in rows]
    changes = [b - a for a, b in pairwise([1, *targets]) if b != a]
    assert changes[0] == 2  # how steadily they go is tested where nothing else takes the CPUs' time
    told = {row["scaling_reason"] for row in rows}
    assert any(reason.startswith("1 to 3: with 1 worker a batch took") for reason in told)
    status, out, err = user.run("compare", str(progress.parent), "-o", "figures")
    assert status == 0, out + err
    assert (user.project / "figures" / "num_env_runners.png").exists()


def rows_of(progress: Path) -> list[Any]:
    """Whole rows, of which there is at least one."""
    return ProgressFile(progress).read() or [{"num_env_runners": 0}]
