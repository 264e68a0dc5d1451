"""Who decides how many rollout workers there should be, before limits and delays.

Ask `build_policy` for the one that the settings name.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from rl_service.config.own_modules import callables_of, import_own
from rl_service.config.settings import ResourceSettings
from rl_service.config.text import nearest, one_line
from rl_service.errors import SettingsError
from rl_service.rollout.load import Load
from rl_service.rollout.throughput import Proposal, ThroughputPolicy

logger = logging.getLogger(__name__)

OwnFunction = Callable[[Load], Any]
"""Returns workers, or (workers, reason)."""


class ScalingPolicy(Protocol):
    @property
    def delayed(self) -> bool:
        """Whether delays and the step size hold; a schedule means what it says at once."""

    def propose(self, load: Load, current: int) -> Proposal:
        """Asks for workers after an iteration; `current` is the target so far."""


class FixedPolicy:
    delayed: ClassVar[bool] = False

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers

    def propose(self, load: Load, current: int) -> Proposal:
        return Proposal(self._num_workers, f"the number is fixed at {self._num_workers}")


class SchedulePolicy:
    """Workers by env steps.

    Args:
        schedule: env steps -> workers from there on.
        num_workers: before the first entry.
    """

    delayed: ClassVar[bool] = False

    def __init__(self, schedule: dict[int, int], num_workers: int) -> None:
        self._schedule = {0: num_workers, **schedule}

    def propose(self, load: Load, current: int) -> Proposal:
        start = max(steps for steps in self._schedule if steps <= load.env_steps)
        workers = self._schedule[start]
        return Proposal(workers, f"the schedule says {workers} from {start} env steps on")


class OwnPolicy:
    """A user's function; whatever it does, the run goes on.

    Args:
        name: `module:function`.

    Raises:
        SettingsError: if it cannot be imported or called.
    """

    delayed: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._function = find_function(name)
        self._told: str | None = None
        """The failure that was told last."""

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
        told = f"{type(error).__name__}: {one_line(error)}"
        if told == self._told:
            return f"{self._name} fails as before"
        self._told = told
        logger.warning("autoscaling policy %s failed", self._name, exc_info=error)
        return f"{self._name} failed ({told}); it must return workers as an int, or (int, reason)"


def build_policy(resources: ResourceSettings) -> ScalingPolicy:
    """The policy that the settings name.

    Args:
        resources: checked settings.

    Raises:
        SettingsError: if a function of one's own cannot be imported or called.
    """
    policy, most = resources.autoscaling_policy, resources.max_env_runners
    if most is None or policy == "fixed":
        return FixedPolicy(resources.num_env_runners)
    if policy == "throughput":
        return ThroughputPolicy(resources.target_sampling_share, most)
    if policy == "schedule":
        return SchedulePolicy(resources.autoscaling_schedule, resources.num_env_runners)
    return OwnPolicy(policy)


def check_policy(resources: ResourceSettings) -> list[str]:
    """The reason for which the policy cannot be used here, if there is one."""
    try:
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
