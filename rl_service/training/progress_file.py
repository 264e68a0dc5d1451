"""`progress.jsonl`: one JSON object per iteration, readable during the run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_service.common.errors import CheckpointError
from rl_service.common.files import output_errors, write_atomic
from rl_service.common.metrics import check_row, json_row


@dataclass(frozen=True)
class ProgressFile:
    """Rows whose keys are those of `rl_service.common.metrics.METRICS`."""

    path: Path

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row; NaN and infinity are stored as null.

        Raises:
            OutputError: if the disk is full; the file then is as before.
            ValueError: if a key is not listed in `rl_service.common.metrics`.
        """
        line = _line(row)
        with output_errors(self.path):
            size_bytes = self._whole_bytes()
            try:
                with self.path.open("ab") as file:
                    file.truncate(size_bytes)  # drops a line that a kill left unfinished
                    file.write(line.encode())
            except OSError:
                os.truncate(self.path, size_bytes)
                raise

    def complete(self, row: Mapping[str, Any]) -> None:
        """Adds keys to the last row.

        Raises:
            OutputError: if the disk is full; the file then is as before.
            ValueError: if a key is not listed in `rl_service.common.metrics`.
        """
        *_, last = self.read()
        whole = self.path.read_bytes()[: self._whole_bytes()]
        before = whole[: whole.rfind(b"\n", 0, -1) + 1].decode()
        write_atomic(self.path, before + _line({**last, **row}))

    def read(self) -> list[dict[str, Any]]:
        """All whole rows, oldest first; none if there is no file yet.

        Raises:
            CheckpointError: naming a line that is not a JSON object.
        """
        if not self.path.exists():
            return []
        whole = self.path.read_bytes()[: self._whole_bytes()]
        return [self._parse(i, line) for i, line in enumerate(whole.splitlines(), start=1)]

    def rewind(self, iteration: int) -> None:
        """Drops the rows after an iteration, so that a resumed run does not list them twice."""
        rows = self.read()
        kept = [row for row in rows if row["training_iteration"] <= iteration]
        if len(kept) < len(rows):
            write_atomic(self.path, "".join(json.dumps(row) + "\n" for row in kept))

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            return dict(json.loads(line))
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"{self.path} line {number} is not a JSON object; the file is damaged: "
                f"remove that line to continue"
            ) from error

    def _whole_bytes(self) -> int:
        """Size of the file up to its last line end."""
        return self.path.read_bytes().rfind(b"\n") + 1 if self.path.exists() else 0


def _line(row: Mapping[str, Any]) -> str:
    check_row(row)
    return json.dumps(json_row(row), allow_nan=False) + "\n"
