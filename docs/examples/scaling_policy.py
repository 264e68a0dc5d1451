"""Your own scaling policy: the number of rollout workers follows a schedule of env steps.

rl-service train --set resources.num_env_runners=1 --set resources.max_env_runners=3 \
    --set resources.autoscaling_policy=docs.examples.scaling_policy:by_schedule

Any function works that takes a `Load` and returns the number of workers, or the number and a
reason. Bounds, delays, the step size and the cost limit apply to it as well. If it fails, the
number of workers stays.
"""

from __future__ import annotations

from rl_service.rollout.throughput import Load

SCHEDULE = {0: 1, 50_000: 3}
"""Env steps of the run, and the number of workers from there on."""


def by_schedule(load: Load) -> tuple[int, str]:
    """The scaling policy.

    Args:
        load: measurements of the iteration that has just ended.
    """
    start = max(steps for steps in SCHEDULE if steps <= load.env_steps)
    return SCHEDULE[start], f"the schedule says {SCHEDULE[start]} from {start} env steps on"
