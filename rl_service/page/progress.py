"""`progress.jsonl` as a reader sees it who comes back every few seconds."""

from __future__ import annotations

import json
import math
import os
import sys
from array import array
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from rl_service.common.metrics import NUMERIC
from rl_service.tuning.curves import Curve

RETURN = "episode_return_mean"
EVALUATION = "evaluation/episode_return_mean"
_BLOCK_BYTES = 64 * 1024
_MAX_TAIL_BYTES = 1024 * 1024
"""In which the newest evaluation is looked for: about 1000 iterations."""
_SPARSE = (RETURN, EVALUATION)
"""Metrics that some rows have no value of."""


class ProgressColumns:
    """The numbers of a `progress.jsonl`, by metric; what was read is not read again.

    A training adds rows, replaces the last one when its policy was evaluated, and drops the last
    ones when it is resumed. So an update goes back to the row before the last: if that is still
    where it was, all rows before it are, too, as no two iterations take exactly as long. If it is
    not, the file is read from its start.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self._num_rows = 0
        self._end = 0  # of the last whole row, in bytes from the file's start
        self._before_last, self._last = b"", b""

    def update(self, path: Path) -> None:
        """Reads what is new.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if a line is not a JSON object.
        """
        with path.open("rb") as file:
            self._go_back(file)
            for line in file:
                if not line.endswith(b"\n"):  # it is being written
                    break
                self._add(line)

    def curve(self, metric: str, over: str) -> Curve | None:
        """A metric over another one, at the rows that have both; None if there are none.

        Rows at which the other has not grown are left out.
        """
        if not {metric, over} <= self._columns.keys():
            return None
        x, values = np.array(self._columns[over]), np.array(self._columns[metric])  # (rows,)
        there = np.isfinite(x) & np.isfinite(values)
        x, values = x[there], values[there]
        grows = np.ones(len(x), dtype=bool)
        grows[1:] = x[1:] > np.maximum.accumulate(x)[:-1]
        return Curve(x[grows], values[grows]) if len(x) else None

    def _go_back(self, file: BinaryIO) -> None:
        """Forgets the last row, which may have changed, or all rows if others have."""
        start = self._end - len(self._last) - len(self._before_last)
        file.seek(start)
        expected = self._before_last
        if not expected or file.read(len(expected)) != expected:
            self._forget()
            file.seek(0)
            return
        for column in self._columns.values():
            column.pop()
        self._num_rows -= 1
        self._end -= len(self._last)
        self._before_last, self._last = b"", self._before_last

    def _add(self, line: bytes) -> None:
        numbers = numbers_in(line)
        for key in numbers.keys() - self._columns.keys():
            self._columns[key] = array("d", [math.nan]) * self._num_rows
        for key, column in self._columns.items():
            column.append(numbers.get(key, math.nan))
        self._num_rows += 1
        self._end += len(line)
        self._before_last, self._last = self._last, line


class Newest(NamedTuple):
    """The end of a `progress.jsonl`."""

    last: dict[str, float]
    """Numbers of the last row."""
    known: dict[str, float]
    """The same, with the newest return and evaluation where the last row has none."""


def read_newest(path: Path) -> Newest:
    """Reads no more of a file than is needed, from its end.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if a line is not a JSON object.
    """
    size_bytes = _BLOCK_BYTES
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while True:
            start = max(0, end - size_bytes)
            file.seek(start)
            lines = file.read(end - start).split(b"\n")[:-1]  # without a line being written
            newest = _newest_of(lines if start == 0 else lines[1:])
            is_whole = newest is not None and all(key in newest.known for key in _SPARSE)
            if is_whole or start == 0 or size_bytes >= _MAX_TAIL_BYTES:
                return newest or Newest({}, {})
            size_bytes *= 8


def _newest_of(lines: list[bytes]) -> Newest | None:
    if not lines:
        return None
    last = numbers_in(lines[-1])
    known = dict(last)
    for key in _SPARSE:
        name = f'"{key}"'.encode()
        for line in reversed(lines):
            if key in known:
                break
            if name in line and key in (numbers := numbers_in(line)):
                known[key] = numbers[key]
    return Newest(last, known)


def numbers_in(line: bytes) -> dict[str, float]:
    """The finite numbers of a row, by metric.

    Raises:
        ValueError: if the line is not a JSON object.
    """
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError("a row is a JSON object")
    largest = sys.float_info.max
    return {
        key: float(row[key])
        for key in row.keys() & NUMERIC
        if isinstance(row[key], int | float) and -largest <= row[key] <= largest
    }
