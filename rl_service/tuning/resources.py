"""What a trial takes of the cluster, and whether the cluster has it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl_service.config.settings import ResourceSettings
from rl_service.errors import OutputError, ResourceError
from rl_service.tuning.space import SearchSpace
from rl_service.tuning.storage import ExperimentStorage

_LEARNER_CPUS = 1.0


def trial_bundles(resources: ResourceSettings) -> list[dict[str, float]]:
    """Of a trial's placement group: the learner, then each rollout worker.

    Workers whose number changes are placed outside the group, wherever there is room.
    """
    return _bundles(resources, 0 if resources.is_elastic else resources.num_env_runners)


def _bundles(resources: ResourceSettings, num_workers: int) -> list[dict[str, float]]:
    learner = {"CPU": _LEARNER_CPUS}
    if resources.num_gpus:
        learner["GPU"] = float(resources.num_gpus)
    worker = {"CPU": resources.num_cpus_per_env_runner}
    return [learner, *[dict(worker) for _ in range(num_workers)]]


class TrialResources:
    """What a trial takes, by its coordinates: the number of workers may be searched."""

    def __init__(self, space: SearchSpace) -> None:
        self._space = space

    def __call__(self, config: Mapping[str, Any]) -> tune.PlacementGroupFactory:
        settings = self._space.settings(self._space.values(config))
        return tune.PlacementGroupFactory(trial_bundles(settings.resources), strategy="PACK")


def check_placement(space: SearchSpace) -> int:
    """Trials of the fixed settings that fit at a time on the nodes that there are.

    Raises:
        ResourceError: if one trial would wait for ever.
    """
    resources = space.base.resources
    bundles = _bundles(resources, resources.num_workers_to_begin_with)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    total = {name: sum(bundle.get(name, 0.0) for bundle in bundles) for name in ("CPU", "GPU")}
    there = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    for name, needed in total.items():
        if needed > there[name]:
            raise ResourceError(_too_large(space.base.resources, name, needed, there[name]))
    if not _can_place(bundles, nodes):
        raise ResourceError(
            f"a trial takes the bundles {bundles}, and no way was found to place them on the "
            f"nodes {[{k: v for k, v in node.items() if k in there} for node in nodes]}; lower "
            f"resources.num_cpus_per_env_runner"
        )
    return min(int(there[name] // needed) for name, needed in total.items() if needed)


def _too_large(resources: ResourceSettings, name: str, needed: float, there: float) -> str:
    workers = f"{resources.num_workers_to_begin_with} x {resources.num_cpus_per_env_runner:g}"
    made_of = f" (1 for the learner, {workers} for rollout workers)" if name == "CPU" else ""
    remedy = (
        "lower resources.num_env_runners" if name == "CPU" else "take settings.resources.num_gpus 0"
    )
    return (
        f"a trial takes {needed:g} {name}s{made_of}, and the cluster has {there:g}: it would wait "
        f"for ever; {remedy}, or add nodes"
    )


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


def check_shared(storage: ExperimentStorage) -> None:
    """Makes sure that every node finds what another one writes.

    Raises:
        OutputError: if the storage is a folder that some node does not share.
    """
    folder = storage.local_path
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if folder is None or len(nodes) < 2:
        return
    marker = folder / f".shared-{uuid.uuid4().hex}"
    marker.touch()
    try:
        look = ray.remote(num_cpus=0)(_exists)
        strategies = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
        seen = ray.get(
            [look.options(scheduling_strategy=each).remote(str(marker)) for each in strategies]
        )
    finally:
        marker.unlink()
    blind = [
        node["NodeManagerAddress"] for node, found in zip(nodes, seen, strict=True) if not found
    ]
    if blind:
        raise OutputError(
            f"the cluster has {len(nodes)} nodes, and {', '.join(blind)} cannot see {folder}: "
            f"trials there could not go on from checkpoints; give --storage a shared folder or a "
            f"URI such as s3://bucket/folder"
        )


def _exists(path: str) -> bool:
    return Path(path).exists()
