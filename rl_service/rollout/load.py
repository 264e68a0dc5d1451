"""What an iteration says about the rollout workers: all that the autoscaler decides from."""

from __future__ import annotations

from typing import NamedTuple


class Load(NamedTuple):
    """Measures of one iteration."""

    iteration: int
    """Iterations done, this one included."""
    env_steps: int
    """Steps sampled since the run began."""
    num_workers: int
    """Workers that sampled the batch of this iteration: after a change, still those before it."""
    num_alive: int
    """Workers that can sample now."""
    num_starting: int
    """Workers that were asked for and cannot sample yet."""
    sample_time_s: float
    """Time that sampling the batch took."""
    learn_time_s: float
    """Time that learning from it took, actor and critic."""
    learn_actor_time_s: float
    """Share of it until the actor was updated; the next batch is sampled after that."""
    iteration_time_s: float
    """Duration of the iteration, waiting included."""
    max_placeable: int | None
    """Workers, those alive included, that the cluster has or can get CPUs for; None: not known."""
    worker_hours: float
    """Hours of all workers since the run began."""
