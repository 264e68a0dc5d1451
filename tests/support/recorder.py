"""An observer of a training run that keeps what it is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_service.training.observer import TrainResult


class Recorder:
    """Keeps rows and messages; a subclass may act after an iteration."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.messages: list[str] = []

    def on_start(self, *args: Any) -> None: ...

    def on_iteration(self, row: Mapping[str, Any]) -> None:
        self.rows.append(dict(row))

    def on_evaluation(self, row: Mapping[str, Any]) -> None: ...

    def on_message(self, text: str) -> None:
        self.messages.append(text)

    def on_finish(self, result: TrainResult) -> None: ...
