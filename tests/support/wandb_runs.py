"""Offline runs of Weights & Biases, and what they hold."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from wandb.proto import wandb_internal_pb2

BLOCK_BYTES = 32 * 1024
FULL, LAST = 1, 4


def environment(tmp_path: Path, **extra: str) -> dict[str, str]:
    """One without a key, in which W&B writes under `tmp_path` alone."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") and k != "NETRC"}
    return kept | {"HOME": str(tmp_path), "WANDB_DISABLE_GIT": "true"} | extra


def offline_runs(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.glob("runs/*/*/wandb/offline-run-*"))


def records(folder: Path) -> Iterator[wandb_internal_pb2.Record]:
    """What W&B wrote: records in LevelDB's log format, cut into pieces at blocks of 32 KiB."""
    (path,) = folder.glob("*.wandb")
    content = path.read_bytes()
    position, record = 7, b""  # a header of 7 bytes comes first
    while position < len(content):
        if BLOCK_BYTES - position % BLOCK_BYTES < 7:  # too little for a piece's header
            position += BLOCK_BYTES - position % BLOCK_BYTES
            continue
        _, size, kind = struct.unpack_from("<IHB", content, position)
        record += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (FULL, LAST):
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def started(folder: Path) -> wandb_internal_pb2.RunRecord:
    return next(record.run for record in records(folder) if record.HasField("run"))


def policy_artifact(tmp_path: Path) -> wandb_internal_pb2.ArtifactRecord:
    """The one that an offline run has kept beside its source code."""
    (folder,) = offline_runs(tmp_path)
    artifacts = [record.artifact for record in records(folder) if record.HasField("artifact")]
    (found,) = [artifact for artifact in artifacts if artifact.type == "model"]
    return found


def curve(folder: Path, key: str) -> list[tuple[int, float]]:
    return [
        (record.history.step.num, json.loads(item.value_json))
        for record in records(folder)
        for item in record.history.item
        if key in (item.key, *item.nested_key)
    ]
