"""The scaling policy that needs no advice: the fewest workers that the learner need not wait for.

After the actor is updated, workers sample the next batch while the critic is fitted, so with n
workers an iteration lasts

    T(n) = r + max(c, x(n))        r: everything else, c: fitting the critic, x: sampling

and the learner waits for x(n) - c of it, if that is positive.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low
from typing import NamedTuple

from rl_service.rollout.load import Load
from rl_service.rollout.sample_times import WINDOW, Model, SampleTimes

LEAST_GAIN = 0.02
"""Share of an iteration that a worker must save. Medians of iterations repeat to a few percent, so
less could not even be seen; and the ninth worker already costs a tenth more for it."""
DEAD_BAND = 0.5
"""Workers leave only if without them the learner would wait for less than this part of what it
may, or if they save less than this part of LEAST_GAIN: between the two nothing moves."""


class Proposal(NamedTuple):
    """What a policy asks for, before limits and delays."""

    num_workers: int
    reason: str


class _Learner(NamedTuple):
    """What an iteration does beside sampling, in seconds."""

    rest_s: float
    critic_s: float

    def iteration_s(self, sample_s: float) -> float:
        return self.rest_s + max(self.critic_s, sample_s)

    def waits_share(self, sample_s: float) -> float:
        """Share of the iteration in which it waits for samples."""
        iteration = self.iteration_s(sample_s)
        return max(0.0, sample_s - self.critic_s) / iteration if iteration > 0.0 else 0.0

    def longest_sampling_s(self, share: float) -> float:
        """Sampling time at which it waits for exactly that share: (x - c) / (r + x) = share."""
        return (self.critic_s + share * self.rest_s) / (1.0 - share)


class ThroughputPolicy:
    """From measured times.

    Args:
        target_share: of an iteration in which the learner may wait, 0…1.
        most: workers that there can be at all.
    """

    delayed = True

    def __init__(self, target_share: float, most: int) -> None:
        self._target_share = target_share
        self._most = most
        self._times = SampleTimes()
        self._rest: deque[float] = deque(maxlen=WINDOW)
        self._critic: deque[float] = deque(maxlen=WINDOW)

    def propose(self, load: Load, current: int) -> Proposal:
        """The count that is enough; `current` where that is neither too few nor too many."""
        if self._times.add(load.iteration, load.num_workers, load.sample_time_s):
            self._take_learner(load)
        if not self._times.anchor:
            return Proposal(current, "the first batch is warming up and is not measured")
        learner = _Learner(median_low(self._rest), median_low(self._critic))
        fewest = self._enough(learner, self._target_share, LEAST_GAIN)
        share = DEAD_BAND * self._target_share
        most = max(fewest, self._enough(learner, share, DEAD_BAND * LEAST_GAIN))
        if load.num_alive > self._times.anchor and fewest > current:
            return Proposal(current, f"{load.num_alive} workers are there and not yet measured")
        wanted = min(max(current, fewest), most)
        return Proposal(wanted, self._reason(learner, current, wanted))

    def _take_learner(self, load: Load) -> None:
        actor, learn = _positive(load.learn_actor_time_s), _positive(load.learn_time_s)
        critic = max(0.0, learn - actor)
        overlapped = max(critic, load.sample_time_s)
        self._critic.append(critic)
        self._rest.append(max(actor, _positive(load.iteration_time_s) - overlapped))

    def _enough(self, learner: _Learner, share: float, gain: float) -> int:
        """Fewest with which the learner waits for at most `share`; each saves `gain` or more."""
        model = self._times.model()
        count = min(
            self._first_within(learner, share),
            _last_useful(model, learner, gain),
            self._last_useful_measured(learner, gain),
            self._most,
        )
        if count == 1:
            return 1
        # The last one may only save what the critic does not hide.
        before, after = (learner.iteration_s(model.time_s(n)) for n in (count - 1, count))
        return count if after <= (1.0 - gain) * before else count - 1

    def _first_within(self, learner: _Learner, share: float) -> int:
        """By the model, then corrected by the counts that were measured."""
        longest, model = learner.longest_sampling_s(share), self._times.model()
        if longest <= model.fixed_s:
            return self._most
        count = max(1, math.ceil(min(model.shared_s / (longest - model.fixed_s), self._most)))
        measured = self._times.measured
        while measured.get(count, 0.0) > longest:
            count += 1
        while measured.get(count - 1, math.inf) <= longest:
            count -= 1
        return count

    def _last_useful_measured(self, learner: _Learner, gain: float) -> int:
        """The count below the first that was tried and saved too little against a smaller one."""
        iterations = {n: learner.iteration_s(x) for n, x in self._times.measured.items()}
        for more, longer in iterations.items():
            for fewer, before in iterations.items():
                if fewer < more and longer > before * (1.0 - gain * (more - fewer)):
                    return more - 1
        return self._most

    def _reason(self, learner: _Learner, current: int, wanted: int) -> str:
        measured = self._times.measured[self._times.anchor]
        waits = learner.waits_share(measured)
        sampled = "1 worker" if self._times.anchor == 1 else f"{self._times.anchor} workers"
        seen = (
            f"with {sampled} a batch took {measured:.3g} s and the learner "
            f"waited {waits:.0%} of an iteration (at most {self._target_share:.0%})"
        )
        if wanted != current:
            return f"{seen}; {wanted} {'is' if wanted == 1 else 'are'} enough"
        if waits > self._target_share and current <= self._times.anchor:
            return f"{seen}; one more would save less than {LEAST_GAIN:.0%}"
        return seen


def _last_useful(model: Model, learner: _Learner, gain: float) -> int:
    """The last worker that saves `gain` of an iteration, where sampling outlasts the critic.

    That is the largest n with W/(n(n-1)) >= gain · (r + x(n-1)).
    """
    base, shared = learner.rest_s + model.fixed_s, model.shared_s
    if base <= 0.0:
        return int(1.0 / gain)  # T(n) = W/n
    middle = gain * (base - shared)
    root = math.sqrt(middle * middle + 4.0 * gain * base * shared)
    # Rounded down, but not where an exact solution came out a hair too small.
    return max(1, math.floor((middle + root) / (2.0 * gain * base) + 1e-9))


def _positive(seconds: float) -> float:
    return seconds if math.isfinite(seconds) and seconds > 0.0 else 0.0
