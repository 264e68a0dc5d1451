"""A scaling policy of one's own: two workers by day, by night whatever the cluster has room for.

rl-service train --set resources.max_env_runners=8 \
    --set resources.autoscaling_policy=docs.examples.scaling_policy:nightly

Any function that takes a `Load` and returns workers, or workers and a reason, will do. Bounds,
delays, the step size and the cost cap hold for it as well, and if it fails the number stays.
"""

from __future__ import annotations

import time

from rl_service.rollout.load import Load

WORKERS_BY_DAY = 2


def workers_at(hour: int, load: Load) -> tuple[int, str]:
    """How many workers an hour of the day allows.

    Args:
        hour: 0…23, of this machine's clock.
        load: of the iteration that has just ended.
    """
    if 7 <= hour < 20:
        return WORKERS_BY_DAY, f"{hour} h is day: {WORKERS_BY_DAY} workers"
    everything = load.max_placeable or load.num_alive + 1
    return everything, f"{hour} h is night: all {everything} that the cluster has room for"


def nightly(load: Load) -> tuple[int, str]:
    """The policy itself."""
    return workers_at(time.localtime().tm_hour, load)
