"""What a trial takes of the cluster, and whether the cluster has it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from custom_models.text import one_line
from rl_service.common.errors import OutputError, ResourceError, SettingsError
from rl_service.common.storage import Storage
from rl_service.config.settings import ResourceSettings
from rl_service.tuning.domains import Value
from rl_service.tuning.plan import PLACEMENT_KEYS
from rl_service.tuning.space import SearchSpace

_LEARNER_CPUS = 1.0
_LOOK_TIMEOUT_S = 120.0  # a node that is busy starts a process in a minute


def trial_bundles(resources: ResourceSettings, num_seeds: int) -> list[dict[str, float]]:
    """Of a trial's placement group: its learners, then each worker that it cannot begin without.

    Workers beyond those are placed outside the group, wherever there is room.

    Args:
        resources: of each training.
        num_seeds: trainings of the trial, which take turns; the first learner is the trial's own
            process, and each training has further learners and workers of its own.
    """
    learner = {"CPU": _LEARNER_CPUS}
    if resources.num_gpus:
        learner["GPU"] = 1.0
    learners = [dict(learner) for _ in range(_num_learners(resources, num_seeds))]
    worker = {"CPU": resources.num_cpus_per_env_runner}
    if worker["CPU"] == 0.0:  # Ray refuses bundles of nothing
        return learners
    num_workers = num_seeds * resources.num_workers_to_begin_with
    return [*learners, *[dict(worker) for _ in range(num_workers)]]


def _num_learners(resources: ResourceSettings, num_seeds: int) -> int:
    """Processes of a trial that learn."""
    return 1 + num_seeds * (resources.num_learners - 1)


def trial_resources(
    space: SearchSpace, num_seeds: int, config: Mapping[str, Any]
) -> tune.PlacementGroupFactory:
    """What a trial takes, by its coordinates: the number of workers may be searched."""
    try:
        resources = space.settings(space.values(config)).resources
    except SettingsError:  # which the trial raises, and is then over
        bundles = [{"CPU": _LEARNER_CPUS}]
    else:
        bundles = trial_bundles(resources, num_seeds)
    return tune.PlacementGroupFactory(bundles, strategy="PACK")


def check_placement(space: SearchSpace, num_seeds: int) -> int:
    """Trials that fit at a time on the nodes that there are, whatever they draw.

    Args:
        space: what they can draw.
        num_seeds: of each.

    Raises:
        ResourceError: if a trial that the space can draw would wait forever.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return min(
        _fitting(resources, num_seeds, drawn, nodes) for resources, drawn in _drawn_resources(space)
    )


def _drawn_resources(space: SearchSpace) -> list[tuple[ResourceSettings, dict[str, Value]]]:
    """Resources that trials can have, each with what was drawn of them."""
    found = []
    for values in space.samples:
        drawn = {key: value for key, value in values.items() if key in PLACEMENT_KEYS}
        update = {key.partition(".")[2]: value for key, value in drawn.items()}
        found.append((space.base.resources.model_copy(update=update), drawn))
    return found


def _fitting(
    resources: ResourceSettings,
    num_seeds: int,
    drawn: Mapping[str, Value],
    nodes: list[Mapping[str, float]],
) -> int:
    bundles = trial_bundles(resources, num_seeds)
    total = {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in ("CPU", "GPU")}
    there = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    for name, needed in total.items():
        if needed > there[name]:
            raise ResourceError(_too_large(resources, num_seeds, drawn, name, needed, there[name]))
    if not _can_place(bundles, nodes):
        raise ResourceError(
            f"{_a_trial(drawn)} takes the bundles {bundles}, and no way was found to place them on "
            f"the nodes {[{k: v for k, v in node.items() if k in there} for node in nodes]}; lower "
            f"{_where(drawn, 'num_cpus_per_env_runner')}"
        )
    return min(int(there[name] // needed) for name, needed in total.items() if needed)


def _too_large(
    resources: ResourceSettings,
    num_seeds: int,
    drawn: Mapping[str, Value],
    name: str,
    needed: float,
    there: float,
) -> str:
    workers = f"{resources.num_workers_to_begin_with} x {resources.num_cpus_per_env_runner:g}"
    if num_seeds > 1:
        workers = f"{num_seeds} seeds x {workers}"
    learners = _num_learners(resources, num_seeds)
    whose = "the learner" if learners == 1 else "learners"
    made_of = f" ({learners} for {whose}, {workers} for rollout workers)" if name == "CPU" else ""
    count = "min_env_runners" if resources.is_elastic else "num_env_runners"
    return (
        f"{_a_trial(drawn)} takes {needed:g} {name}s{made_of}, and the cluster has {there:g}: it "
        f"would wait for ever; lower {_where(drawn, count if name == 'CPU' else 'num_gpus')}, or "
        f"add nodes"
    )


def _a_trial(drawn: Mapping[str, Value]) -> str:
    values = " and ".join(f"{key}={value}" for key, value in drawn.items())
    return f"a trial that draws {values}" if values else "a trial"


def _where(drawn: Mapping[str, Value], name: str) -> str:
    """The key of the tuning file that says how much of a resource a trial takes."""
    key = f"resources.{name}"
    return f"{key} in {'search_space' if key in drawn else 'settings'}"


def _can_place(bundles: list[dict[str, float]], nodes: list[Mapping[str, float]]) -> bool:
    """Largest first onto the first node with room, which is how far Ray's packing needs to go."""
    free = [dict(node) for node in nodes]
    for bundle in sorted(bundles, key=lambda one: (-one.get("GPU", 0.0), -one["CPU"])):
        for node in free:
            if all(node.get(name, 0.0) >= needed for name, needed in bundle.items()):
                for name, needed in bundle.items():
                    node[name] -= needed
                break
        else:
            return False
    return True


def check_shared(storage: Storage) -> None:
    """Makes sure that every node finds what another one writes.

    A node that goes meanwhile need not: no trial will be there.

    Raises:
        OutputError: if the storage is a folder that some node does not share.
        ResourceError: if a node does not answer.
    """
    folder = storage.local_path
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if folder is None or len(nodes) < 2:
        return
    marker = folder / f".shared-{uuid.uuid4().hex}"
    marker.touch()
    try:
        blind = _blind(nodes, marker)
    finally:
        marker.unlink()
    if blind:
        raise OutputError(
            f"the cluster has {len(nodes)} nodes, and {', '.join(blind)} cannot see {folder}: "
            f"trials there could not continue from checkpoints; give --storage a shared folder or "
            f"a URI such as s3://bucket/folder"
        )


def _blind(nodes: list[dict[str, Any]], marker: Path) -> list[str]:
    """Addresses of the nodes that do not see a file."""
    look = ray.remote(num_cpus=0)(_exists)
    strategies = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    looks = [look.options(scheduling_strategy=each).remote(str(marker)) for each in strategies]
    ray.wait(looks, num_returns=len(looks), timeout=_LOOK_TIMEOUT_S)
    blind = []
    for node, seen in zip(nodes, looks, strict=True):
        try:
            if not ray.get(seen, timeout=0):
                blind.append(node["NodeManagerAddress"])
        except RayError as error:
            if _is_alive(node["NodeID"]):
                raise ResourceError(
                    f"node {node['NodeManagerAddress']} does not say whether it shares the storage "
                    f"({one_line(error)[:200]}); see what it is doing, and try again"
                ) from error
    return blind


def _is_alive(node_id: str) -> bool:
    return any(node["Alive"] and node["NodeID"] == node_id for node in ray.nodes())


def _exists(path: str) -> bool:
    return Path(path).exists()
