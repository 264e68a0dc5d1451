"""Between two iterations: the autoscaler's decision, carried out by the fleet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_service.capacity import Capacity
from rl_service.config.settings import ResourceSettings
from rl_service.metrics import ENV_STEPS
from rl_service.rollout.autoscaler import Autoscaler, Load
from rl_service.rollout.fleet import Fleet


class Scaling:
    """A fleet whose size follows what iterations measure.

    Args:
        resources: limits and delays.
        fleet: to be resized.
    """

    def __init__(self, resources: ResourceSettings, fleet: Fleet) -> None:
        self._fleet = fleet
        self._autoscaler = Autoscaler(resources, fleet.size)
        self._capacity = Capacity(resources.num_cpus_per_env_runner, fleet.count_held)

    def rescale(self, row: Mapping[str, Any], num_sampling_workers: int) -> dict[str, Any]:
        """Resizes the fleet if the autoscaler wants it; never waits for a worker.

        Args:
            row: numbers of the iteration, by the keys of `rl_service.metrics.METRICS`.
            num_sampling_workers: workers that sampled the iteration's batch.

        Returns:
            The decision, by the same keys.
        """
        fleet = self._fleet
        decision = self._autoscaler.decide(
            Load(
                iteration=row["training_iteration"],
                env_steps=row[ENV_STEPS],
                num_workers=num_sampling_workers,
                num_alive=len(fleet.ready),
                num_starting=fleet.num_starting,
                sample_time_s=row["sample_time_s"],
                learn_time_s=row["learn_time_s"],
                learn_actor_time_s=row["learn_actor_time_s"],
                iteration_time_s=row["iteration_time_s"],
                max_placeable=self._capacity.placeable(),
                worker_hours=fleet.worker_hours,
            )
        )
        if decision.num_workers != fleet.size:
            fleet.tell(f"rollout workers: {decision.reason}")
            fleet.resize(decision.num_workers)
        return {"num_env_runners_target": fleet.size, "scaling_reason": decision.reason}
