"""Bytes that travel between rollout workers and learner."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray import cloudpickle

from tests.benchmarks.subjects.trainings import Trainings


class Traffic(Trainings):
    """Trainings whose messages are weighed."""

    def batch_bytes(self, name: str, vector_steps: int) -> dict[str, float]:
        """Bytes per env step of one worker's batch, as Ray ships it, and of its columns alone.

        `plain`: the same columns with one row per env step: neither context nor final rows.
        """
        batch = self.algorithms[name].env_runner.sample(vector_steps)
        steps = int(batch["loss_mask"].sum())
        columns = [np.asarray(batch[column]) for column in batch]
        return {
            "shipped": shipped_bytes(batch) / steps,
            "plain": float(sum(column.nbytes / len(column) for column in columns)),
        }

    def weight_bytes(self, name: str) -> int:
        """Bytes of the weights that one worker receives an iteration."""
        return shipped_bytes(self.algorithms[name].learner_policy.get_weights())


def shipped_bytes(message: Any) -> int:
    """Bytes in Ray's object store: pickle protocol 5, arrays beside the stream."""
    buffers: list[Any] = []
    stream = cloudpickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    size: int = len(stream) + sum(buffer.raw().nbytes for buffer in buffers)
    return size
