"""The default scaling policy: the fewest workers with which the learner hardly waits.

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

LEAST_GAIN = 0.02
"""Share of an iteration that a worker must save. Medians of iterations repeat to a few percent, so
less could not even be seen; and the ninth worker already costs a tenth more for it."""
DEAD_BAND = 0.5
"""Workers leave only if without them the learner would wait for less than this part of what it
may, or if they save less than this part of LEAST_GAIN: between the two nothing moves."""
WINDOW = 3
"""Iterations that a median is taken over: one outlier is ignored, a new load shows in the second
iteration that has it."""
MEMORY = 50
"""Iterations after which a count that was not used since counts as untried: what looked useless
while the load grew, or on other nodes, gets another chance."""
PRIOR = 0.02
"""Weight of the guess a = 0 beside measured counts. It decides while there is one count alone,
steadies a line through two that lie close together (8 and 10), and gives way to 1 and 2."""


class Proposal(NamedTuple):
    """What a policy asks for, before limits and delays."""

    num_workers: int
    reason: str


class _Learner(NamedTuple):
    """The parts of an iteration other than sampling, in seconds."""

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
        most: largest possible number of workers.
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


class Model(NamedTuple):
    """The two parameters, in seconds."""

    fixed_s: float
    """a."""
    shared_s: float
    """W."""

    def time_s(self, num_workers: int) -> float:
        """x(n)."""
        return self.fixed_s + self.shared_s / num_workers


class _Measured(NamedTuple):
    time_s: float
    iteration: int


class SampleTimes:
    """Medians by count. When the load changes at one count, the others are moved with it."""

    def __init__(self) -> None:
        self._count = 0
        """Workers of the last batch."""
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._by_count: dict[int, _Measured] = {}
        self.anchor = 0
        """The count that was measured last; 0: none yet."""

    def add(self, iteration: int, num_workers: int, time_s: float) -> bool:
        """Adds the time of one batch.

        Returns:
            Whether it was used: the first batch of a count warms its workers up, and times that
            are no positive number say nothing.
        """
        if not (math.isfinite(time_s) and time_s > 0.0 and num_workers > 0):
            return False
        if num_workers != self._count:
            self._count = num_workers
            self._recent.clear()
            return False
        self._take(iteration, time_s)
        return True

    def _take(self, iteration: int, time_s: float) -> None:
        settled = len(self._recent) == WINDOW
        self._recent.append(time_s)
        # Of two, the lower: one slow batch is no reason to ask for workers.
        level = median_low(self._recent)
        if settled:
            self._move_others(level / self._by_count[self._count].time_s)
        self.anchor = self._count
        self._by_count[self.anchor] = _Measured(level, iteration)
        self._by_count = {
            n: each for n, each in self._by_count.items() if each.iteration > iteration - MEMORY
        }

    def _move_others(self, factor: float) -> None:
        """Keeps the shape of the curve when its level changes: batches got dearer for all."""
        self._by_count = {
            n: _Measured(each.time_s * factor, each.iteration) for n, each in self._by_count.items()
        }

    @property
    def measured(self) -> dict[int, float]:
        """Seconds by count, in rising order of counts."""
        return {n: self._by_count[n].time_s for n in sorted(self._by_count)}

    def model(self) -> Model:
        """The line in 1/n through the anchor that fits the other counts best (least squares).

        a and W are never negative: that would promise time that nobody has seen.
        """
        here = self._by_count[self.anchor].time_s
        products, squares = PRIOR * here / self.anchor, PRIOR / self.anchor**2
        for n, each in self._by_count.items():
            distance = 1.0 / n - 1.0 / self.anchor
            products += distance * (each.time_s - here)
            squares += distance * distance
        shared = min(max(products / squares, 0.0), here * self.anchor)
        return Model(here - shared / self.anchor, shared)


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
