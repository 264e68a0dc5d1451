"""Offline runs of Weights & Biases, and what they hold."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from wandb.proto import wandb_internal_pb2

BLOCK_BYTES = 32 * 1024
FULL, LAST = 1, 4

TRAIN = """
import sys
from pathlib import Path
from rl_service.config.settings import Settings, TrackingSettings
from rl_service.training.run import Run
from rl_service.training.tracking import build_trackers
from rl_service.training import weights_and_biases

weights_and_biases._INIT_TIMEOUT_S = 3.0
tracking = TrackingSettings(output_dir=sys.argv[1], tensorboard=False, wandb_project="tests")
settings = Settings(tracking=tracking, seed=77)
runs = sorted(Path(sys.argv[1]).glob("runs/*/*"))
run = Run.open(runs[0]) if runs else Run.create(settings, command=[])
(tracker,) = build_trackers(run, settings, print)
start = len(run.read_progress())
for iteration in range(start + 1, start + 4):
    row = {"training_iteration": iteration, "episode_return_mean": 0.5 + iteration}
    run.append_progress(row)
    tracker.log(row, 100 * iteration)
tracker.finish("stopped")
print("done")
"""


def environment(tmp_path: Path, **extra: str) -> dict[str, str]:
    """One without a key, in which W&B writes under `tmp_path` alone."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") and k != "NETRC"}
    return kept | {"HOME": str(tmp_path), "WANDB_DISABLE_GIT": "true"} | extra


def train(tmp_path: Path, **extra: str) -> str:
    """Three iterations of a run in that folder, or three more; gives what was printed."""
    return run(TRAIN, tmp_path, **extra)


def run(script: str, tmp_path: Path, *arguments: str, **extra: str) -> str:
    """Runs a script in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), *arguments],
        env=environment(tmp_path, **extra),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")
    return done.stdout


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
