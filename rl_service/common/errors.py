"""Errors that a user can cause and fix.

RLServiceError             one line: what, why, what to do; the command line exits with 2
├── SettingsError          a setting, flag or preset
├── EnvError               an environment that is unknown or that a model cannot read
├── CheckpointError        a missing, truncated or foreign checkpoint
├── BundleError            a missing, truncated or foreign policy bundle
├── RegistryError          a policy, version or alias that is unknown, a registry out of reach
├── ObservationError       an observation that a policy cannot read
├── BaseModelError         a base model that cannot be fetched or converted
├── TuningError            a tuning experiment that is missing, damaged or left no policy
├── ClusterError           a cluster that does not start, is not there, or lets nobody in
├── JobError               a job that is unknown or cannot be submitted
├── OutputError            a folder that cannot be written, a full disk
└── ResourceError          more CPUs or GPUs than there are
TrainingFailedError        the run itself failed (NaN, an environment); exit status 1
├── LearnerLostError       one of several learners died
└── WorkersLostError       no rollout worker is left; the state is saved; exit status 75
"""

from __future__ import annotations


class RLServiceError(Exception):
    """Base of all errors that the user can fix; the text is one line."""


class SettingsError(RLServiceError):
    """One or more settings are wrong; `problems` lists all of them, one line each."""

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else problems
        super().__init__("; ".join(self.problems))


class EnvError(RLServiceError):
    """An environment is unknown, cannot be made, or cannot be read by the model."""


class CheckpointError(RLServiceError):
    """A checkpoint is missing, truncated, or of another kind of run."""


class BundleError(RLServiceError):
    """A policy bundle is missing, truncated, foreign, or fails its parity check."""


class RegistryError(RLServiceError):
    """A registry has no such policy, version or alias, or cannot be read or written."""


class ObservationError(RLServiceError):
    """An observation has another shape than the policy reads, or is not finite."""


class BaseModelError(RLServiceError):
    """A base model cannot be fetched or converted."""


class TuningError(RLServiceError):
    """A tuning experiment is missing or damaged, or none of its trials left a policy."""


class ClusterError(RLServiceError):
    """A cluster does not start, does not answer, or does not take the token."""


class JobError(RLServiceError):
    """A job is unknown, or cannot be submitted as it is."""


class OutputError(RLServiceError):
    """A file or folder cannot be written."""


class ResourceError(RLServiceError):
    """The machine or cluster has fewer resources than the settings ask for."""


class TrainingFailedError(Exception):
    """A run cannot continue although its settings were right; its last checkpoint is whole."""


class LearnerLostError(TrainingFailedError):
    """One of several learners is lost; the run can continue from its last checkpoint."""


class WorkersLostError(TrainingFailedError):
    """All rollout workers are lost and none came back; the run can continue when there is room."""
