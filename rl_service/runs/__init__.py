"""A run on disk and at work: its folder, checkpoints, log, signals and observers."""

from rl_service.runs.capture import captured_output
from rl_service.runs.checkpoints import CheckpointStore
from rl_service.runs.observer import TrainingObserver, TrainResult
from rl_service.runs.run import Run
from rl_service.runs.signals import StopRequest, interruptible

__all__ = [
    "CheckpointStore",
    "Run",
    "StopRequest",
    "TrainResult",
    "TrainingObserver",
    "captured_output",
    "interruptible",
]
