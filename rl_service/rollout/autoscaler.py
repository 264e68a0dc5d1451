"""Decides between two iterations how many rollout workers there should be.

A policy asks for a number; limits, delays, the step size and the cost cap decide what it gets.
Nobody waits for a decision to be carried out: the target counts workers that are still starting,
and measures are of the workers that really sampled.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from custom_models.kinds import callables_of, import_own
from custom_models.text import nearest, one_line
from rl_service.common.errors import SettingsError
from rl_service.config.settings import THROUGHPUT, ResourceSettings
from rl_service.rollout.throughput import Load, Proposal, ThroughputPolicy

__all__ = ["Autoscaler", "Decision", "Load", "check_policy"]

logger = logging.getLogger(__name__)

OwnFunction = Callable[[Load], Any]
"""Returns workers, or (workers, reason)."""


class Decision(NamedTuple):
    """How many workers from now on, and why."""

    num_workers: int
    """Alive and starting workers together."""
    reason: str
    """The reason, one line with the numbers that led to it."""


class Autoscaler:
    """The target of one run.

    Args:
        settings: checked settings, with `max_env_runners`.
        num_workers: workers at the start; a resumed run starts with those it had.

    Raises:
        SettingsError: if the user's policy cannot be imported or called.
    """

    def __init__(self, settings: ResourceSettings, num_workers: int) -> None:
        self._settings = settings
        self._policy = build_policy(settings)
        assert settings.max_env_runners is not None
        self._least, self._most = settings.min_env_runners, settings.max_env_runners
        self._target = min(max(num_workers, self._least), self._most)
        self._last_proposal = self._target
        self._direction = 0
        self._asked = 0
        """Iterations in a row that asked for a change in that direction."""
        self._held_iterations = 0
        """Iterations that are left in which no more than `_held` workers are no reason to grow."""
        self._held = 0

    def decide(self, load: Load) -> Decision:
        """Decides once after each iteration."""
        before = self._target
        self._held_iterations -= 1
        proposal = self._policy.propose(load, before)  # also after the cap, since it measures
        granted = self._granted(load, proposal)
        count, reason = self._within_room(load, granted)
        self._last_proposal, self._target = proposal.num_workers, count
        if granted.num_workers < before:
            self._held, self._held_iterations = before, self._settings.down_delay_iterations
        if count == before:
            return Decision(count, f"stays at {count}: {reason}")
        self._direction = self._asked = 0
        return Decision(count, f"{before} to {count}: {reason}")

    def _granted(self, load: Load, proposal: Proposal) -> Proposal:
        cap = self._settings.max_worker_hours
        if cap is not None and load.worker_hours >= cap:
            spent = f"{load.worker_hours:.3g} of {cap:g} worker-hours are spent"
            return Proposal(self._least, f"{spent}, the run continues with {self._least}")
        return self._delayed(load, self._bounded(proposal))

    def _bounded(self, proposal: Proposal) -> Proposal:
        count, reason = proposal
        if count > self._most:
            return Proposal(self._most, f"{reason}; at most {self._most} are allowed")
        if count < self._least:
            return Proposal(self._least, f"{reason}; at least {self._least} are asked for")
        return proposal

    def _delayed(self, load: Load, proposal: Proposal) -> Proposal:
        """Delays a change until it was requested often enough, then takes one step."""
        count, reason = proposal
        if load.num_starting and count > self._target:
            # The measures cannot have got better yet, so only what two in a row ask for counts:
            # else the noise of a long wait for a node would add up to workers that nobody needs.
            count = max(self._target, min(count, self._last_proposal))
        if self._held_iterations > 0 and self._target < count <= self._held:
            # Back to where it has just come from: noise asks for that, a new load for more.
            reason = f"{reason}, and {self._held} were too many just now"
            count = self._target
        change = count - self._target
        direction = (change > 0) - (change < 0)
        self._asked = self._asked + 1 if direction == self._direction else 1
        self._direction = direction
        settings = self._settings
        delay = settings.up_delay_iterations if direction > 0 else settings.down_delay_iterations
        if direction and self._asked < delay:
            asked = f"asked for in {self._asked} of {delay} iterations in a row"
            return Proposal(self._target, f"{reason}, {asked}")
        step = settings.max_scaling_step
        if abs(change) > step:
            return Proposal(self._target + direction * step, f"{reason}, at most {step} at a time")
        return Proposal(count, reason)

    def _within_room(self, load: Load, proposal: Proposal) -> Proposal:
        """Asks for no more workers than the cluster can place, except for the minimum."""
        if load.max_placeable is None:
            return proposal
        room = max(load.max_placeable, load.num_alive, self._least)
        if proposal.num_workers <= room:
            return proposal
        return Proposal(room, f"{proposal.reason}; the cluster has room for {room}")


class ScalingPolicy(Protocol):
    def propose(self, load: Load, current: int) -> Proposal:
        """Asks for workers after an iteration; `current` is the target so far."""


class OwnPolicy:
    """A user's function; if it fails, the number of workers stays.

    Args:
        name: `module:function`.

    Raises:
        SettingsError: if it cannot be imported or called.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._function = find_function(name)
        self._reported: str | None = None
        """The failure that was reported last."""

    def propose(self, load: Load, current: int) -> Proposal:
        try:
            return self._read(self._function(load))
        except Exception as error:  # a user's function may raise anything
            return Proposal(current, self._failure(error))

    def _read(self, answer: Any) -> Proposal:
        count, reason = answer if isinstance(answer, tuple) else (answer, "")
        if isinstance(count, bool) or not isinstance(reason, str):
            raise TypeError(f"it returned {one_line(repr(answer))[:60]}")
        try:
            workers = operator.index(count)  # NumPy's integers, too, but no floats
        except TypeError:
            raise TypeError(f"it returned {one_line(repr(answer))[:60]}") from None
        return Proposal(workers, one_line(reason) or f"{self._name} says {workers}")

    def _failure(self, error: Exception) -> str:
        failure = f"{type(error).__name__}: {one_line(error)}"
        if failure == self._reported:
            return f"{self._name} fails as before"
        self._reported = failure
        logger.warning("autoscaling policy %s failed", self._name, exc_info=error)
        return (
            f"{self._name} failed ({failure}); it must return workers as an int, or (int, reason)"
        )


def build_policy(resources: ResourceSettings) -> ScalingPolicy:
    """The policy that the settings name.

    Args:
        resources: checked settings, with `max_env_runners`.

    Raises:
        SettingsError: if the user's function cannot be imported or called.
    """
    most = resources.max_env_runners
    assert most is not None
    if resources.autoscaling_policy == THROUGHPUT:
        return ThroughputPolicy(resources.target_sampling_share, most)
    return OwnPolicy(resources.autoscaling_policy)


def check_policy(resources: ResourceSettings) -> list[str]:
    """Why the policy cannot be used on this machine, in one line or none."""
    try:
        if resources.is_elastic:
            build_policy(resources)
    except SettingsError as error:
        return error.problems
    return []


def find_function(name: str) -> OwnFunction:
    """Imports `module:function`.

    Raises:
        SettingsError: if that fails.
    """
    what = f"resources.autoscaling_policy={name}"
    module_name, _, function_name = name.partition(":")
    try:
        module = import_own(module_name)
    except ValueError as error:
        raise SettingsError(f"{what}: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        near = nearest(function_name, callables_of(module))
        hint = f"did you mean {near}?" if near else "give one that takes a Load"
        raise SettingsError(f"{what}: {module_name} has no function {function_name}; {hint}")
    return function  # type: ignore[no-any-return]
