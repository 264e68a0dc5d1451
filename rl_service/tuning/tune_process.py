"""What Ray Tune has around it in our process: variables, warnings, signals."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import warnings
from collections.abc import Iterator

from ray.tune.experiment import Trial

from rl_service.common.errors import EnvError, SettingsError, TrainingFailedError, WorkersLostError
from rl_service.runtime.signals import StopRequest
from rl_service.tuning.watch import exception_of

_SNAPSHOT_PERIOD_S = "5"


@contextlib.contextmanager
def tune_environment() -> Iterator[None]:
    """Sets Tune's switches that are variables alone, and silences what alarms for nothing."""
    wanted = {
        "RAY_AIR_NEW_OUTPUT": "0",  # else it draws its own table
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # result files for three viewers, of each trial
        "TUNE_DISABLE_SIGINT_HANDLER": "1",  # see `Stopping`
        "TUNE_GLOBAL_CHECKPOINT_S": _SNAPSHOT_PERIOD_S,
        # A snapshot with each checkpoint is what makes a kill cost little.
        "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: os.environ.get(name, value) for name, value in wanted.items()})
    try:
        with warnings.catch_warnings(), _without_errors_of_its_end(), _failing_for_good():
            # A trial that starts again from a checkpoint reports some steps a second time.
            warnings.filterwarnings("ignore", "The reported value is ignored", UserWarning)
            yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]


@contextlib.contextmanager
def _without_errors_of_its_end() -> Iterator[None]:
    """Tune misses, when it has ended, the result files that it was told not to write."""
    log = logging.getLogger("ray.tune.analysis.experiment_analysis")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


@contextlib.contextmanager
def _failing_for_good() -> Iterator[None]:
    """Lets a trial start again only where another try may end in another way.

    Tune tries again whatever an exception says, and asks this method alone.
    """
    before = Trial.should_recover

    def should_recover(trial: Trial) -> bool:
        return before(trial) and not will_recur(exception_of(trial))

    Trial.should_recover = should_recover
    try:
        yield
    finally:
        Trial.should_recover = before


def will_recur(error: BaseException | None) -> bool:
    """Whether a trial that raised this does so again: its seeds and settings stay the same."""
    lasts = isinstance(error, SettingsError | EnvError | TrainingFailedError)
    return lasts and not isinstance(error, WorkersLostError)


class Stopping(StopRequest):
    """A request on which Tune saves and ends; puts back what Tune has changed, too."""

    def __enter__(self) -> Stopping:
        super().__enter__()
        if self._previous:  # Tune's own handler of it stays when Tune has ended
            self._previous[signal.SIGUSR1] = signal.getsignal(signal.SIGUSR1)
        return self
