"""Two nodes: tuning through the Jobs API, followed, stopped, resumed, a node lost on the way; and
what else is submitted to them, or is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.clusters import STEP_VARIABLE, WANDB_KEY, UserCluster, wait_for
from tests.support.tuning import SMALL, iterations, write_tuning_file

NUM_TRIALS = 3
NUM_ITERATIONS = 8
SLOW = {STEP_VARIABLE: "0.02"}


def write_file(user: UserCluster) -> None:
    settings = {
        **SMALL["settings"],
        "env": {"id": "probe:ProbeEnv", "max_episode_steps": 20},
        "stop": {"iterations": NUM_ITERATIONS},
        "tracking": {"tensorboard": False},
    }
    content = SMALL | {"settings": settings, "num_samples": NUM_TRIALS}
    (user.project / "small.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def experiment(user: UserCluster) -> Path | None:
    return next((file.parent for file in user.project.glob("runs/*/tuning.yaml")), None)


def checkpoints(user: UserCluster) -> list[Path]:
    return list(user.project.glob("runs/*/trial_*/checkpoint_*/result.json"))


def test_a_folder_that_other_nodes_do_not_see_is_no_storage(cluster: UserCluster) -> None:
    write_tuning_file(cluster.project / "plain.yaml")
    # A path that is another folder in every process, as a local disk is on every machine.
    apart = "/proc/self/cwd/apart"
    connected = {
        "RAY_ADDRESS": cluster.state.address,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": cluster.token,
    }
    status, out, err = cluster.run("tune", "plain.yaml", "--storage", apart, **connected)
    assert status == 2, out + err
    [line] = err.splitlines()
    assert "the cluster has 2 nodes" in line
    assert "cannot see /proc/self/cwd/apart" in line
    assert "give --storage a shared folder or a URI" in line
    assert not list(cluster.project.glob("apart/*"))


# An object store that lets in whoever has the key; what fsspec knows it by comes with it.
STORE = """\
import os
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

class KeyedFileSystem(DirFileSystem):
    protocol = "keyed"

    def __init__(self, **options):
        super().__init__(path="/", fs=LocalFileSystem(auto_mkdir=True))

    def _join(self, path):
        if os.environ.get("AWS_SECRET_ACCESS_KEY") != "of-these-tests":
            raise PermissionError("the key is missing")
        return super()._join(path)
"""


@pytest.mark.timeout(600)
def test_an_experiment_survives_its_client_a_stop_and_a_node(cluster: UserCluster) -> None:
    write_file(cluster)
    client = cluster.start("submit", "small.yaml", "--name", "search", "--follow", **SLOW)
    # Both nodes have one CPU, so two trials run, one on each.
    wait_for(lambda: len({file.parents[1] for file in checkpoints(cluster)}) == 2, "two trials")
    client.kill()
    [job] = cluster.ask("jobs", "list")["jobs"]
    assert job["status"] == "RUNNING"
    status, out, _ = cluster.run("jobs", "logs", job["id"])
    assert status == 0
    assert "2 at a time" in out

    status, out, err = cluster.run("jobs", "stop", job["id"])
    assert status == 0, out + err
    folder = experiment(cluster)
    assert folder is not None
    assert f"rl-service tune --resume {folder}" in cluster.run("jobs", "logs", job["id"])[1]
    states = newest_iterations(folder)
    assert max(states.values()) < NUM_ITERATIONS

    resume = ("submit", "tune", "--resume", f"runs/{folder.name}", "--name", "again")
    assert cluster.run(*resume, **SLOW)[0] == 0
    wait_for(
        lambda: all(
            newest_iterations(folder).get(trial, 0) > done for trial, done in states.items()
        ),
        "trials on both nodes that go on",
    )
    cluster.kill_node("worker-1")
    status, out, err = cluster.run("jobs", "logs", "again", "--follow")
    assert status == 0, out + err
    assert "lost its process or node; it starts again from its last checkpoint" in out
    assert f"{NUM_TRIALS} trials, {NUM_TRIALS * NUM_ITERATIONS * 64:,} env steps" in out
    rows = iterations(str(folder))
    assert len(rows) == NUM_TRIALS
    for lines in rows.values():  # whole, each iteration once
        assert [row["training_iteration"] for row in lines] == [*range(1, NUM_ITERATIONS + 1)]
    [registered] = cluster.ask("policies", "list")["policies"]
    assert registered["aliases"] == ["best"]


@pytest.mark.timeout(600)
def test_keys_of_the_storage_reach_trials_and_nobody_else(
    cluster: UserCluster,
) -> None:
    (cluster.project / "keyed.py").write_text(STORE)
    plugin = cluster.project / "keyed-1.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: keyed\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[fsspec.specs]\nkeyed = keyed:KeyedFileSystem\n")
    write_tuning_file(cluster.project / "keyed.yaml")
    store = cluster.project.parent / "store"
    store.mkdir()
    key = {"AWS_SECRET_ACCESS_KEY": "of-these-tests"}
    submit = (
        "submit",
        "keyed.yaml",
        "--name",
        "keyed",
        "--follow",
        "--storage",
        f"keyed://{store}",
    )
    status, out, err = cluster.run(*submit, **key)
    assert status == 0, out + err
    assert list(store.glob("*/trial_*/checkpoint_*/result.json"))
    assert list(store.glob("*/log.txt"))
    assert "of-these-tests" not in cluster.api("/api/jobs/")
    assert "of-these-tests" not in cluster.api("/api/v0/actors?detail=true")
    kept = [path for path in store.rglob("*") if path.is_file()]
    assert [path for path in kept if b"of-these-tests" in path.read_bytes()] == []


def newest_iterations(folder: Path) -> dict[str, Any]:
    """Iterations of each trial's newest checkpoint."""
    found: dict[str, Any] = {}
    for file in sorted(folder.glob("trial_*/checkpoint_*/seed_3/training_progress.json")):
        progress = file.with_name("progress.jsonl")
        if progress.is_file():
            found[file.parents[2].name] = len(progress.read_text(encoding="utf-8").splitlines())
    return found


def test_a_cluster_elsewhere_gets_the_token_that_is_given_and_no_secrets(
    cluster: UserCluster,
) -> None:
    elsewhere = {
        "RL_SERVICE_HOME": str(cluster.home / "elsewhere"),  # whose cluster this is not
        "RAY_API_SERVER_ADDRESS": cluster.state.dashboard_url,
        "RAY_AUTH_TOKEN": cluster.token,
    }
    play = ["evaluate", "zoo:lunarlander", "-ne", "1"]
    shared = ["-o", str(cluster.home / "shared")]
    status, out, err = cluster.run("submit", "--follow", *shared, *play, **elsewhere)
    assert status == 0, out + err
    assert "1 episodes: return " in out
    assert "note: WANDB_API_KEY not sent: all who may list jobs could read it" in err
    assert WANDB_KEY not in cluster.api("/api/jobs/")


def test_a_training_without_an_address_stays_off_the_cluster(cluster: UserCluster) -> None:
    def drivers() -> int:
        return cluster.api("/api/jobs/").count('"DRIVER"')

    before = drivers()
    local = ["--set", "env.id=CartPole-v1", "--set", "resources.num_env_runners=0"]
    status, out, err = cluster.run("train", "--config", "tiny.yaml", *local)
    assert status == 0, out + err
    assert drivers() == before
