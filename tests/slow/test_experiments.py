"""The queue of experiments trains, stops in the middle, resumes, and skips what is done."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from rl_service.common.metrics import ENV_STEPS
from rl_service.policies import load_bundle
from tests.learning import experiments, queue, record, training

ROWS = """
sections:
  - title: Part
    rows:
      - name: cartpole
        title: CartPole
        config: reports/CartPole-v1_three_layers
        set:
          algorithm.train_batch_size: 256
          resources.num_envs_per_env_runner: 4
          evaluation.interval: 10
        env_steps: 50000
        seeds: [100]
        evaluation_seed: 7
        episodes_per_point: 5
        minutes: 1
      - name: wrong
        title: Wrong
        config: tuned/CartPole-v1_mlp
        set: {env.id: NoSuchEnv-v0}
        seeds: [100]
        minutes: 0.5
"""


def stop_after_rows(work: Path, stop: threading.Event) -> None:
    """Sets `stop` once the training has a few iterations on disk."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not stop.is_set():
        for progress in work.glob("cartpole/100/runs/*/*/progress.jsonl"):
            if progress.read_text(encoding="utf-8").count("\n") >= 3:
                stop.set()
        time.sleep(0.02)


def test_a_run_is_stopped_resumed_and_recorded_once(
    ray_address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_address)
    file, runs, work = tmp_path / "queue.yaml", tmp_path / "runs", tmp_path / "work"
    file.write_text(ROWS, encoding="utf-8")
    row = queue.read(file).rows["cartpole"]
    stop = threading.Event()
    watcher = threading.Thread(target=stop_after_rows, args=(work, stop))
    watcher.start()
    with pytest.raises(training.StoppedError):
        experiments.run(row, 100, runs, work, stop)
    watcher.join()
    assert record.read_all(row, runs) == {}
    begun = training.begun_run(work / "cartpole" / "100")
    assert begun is not None

    places = ["--queue", str(file), "--runs", str(runs), "--work", str(work)]
    experiments.main(["run", "-j", "2", *places])
    done = record.read_all(row, runs)[100]
    said = capfd.readouterr().out
    assert "wrong 100 failed" in said
    assert "cartpole 100" in said
    steps = done["curve"][ENV_STEPS]
    assert steps == list(range(256, 49921, 256))  # each iteration once: none lost, none repeated
    assert (done["env_steps"], len(done["returns"])) == (49920, queue.NUM_EPISODES)
    points = done["per_episodes"]
    assert points[record.EPISODES][:2] == [5, 10]
    assert len(points[record.EPISODES]) == done["curve"][record.EPISODES][-1] // 5
    assert not (work / "cartpole" / "100").exists()
    policy = load_bundle(work / "policies" / "cartpole" / "100")
    assert policy.spec.env.id == "CartPole-v1"
    assert policy.spec.provenance["run_id"] == begun.name

    before = record.path_of(row, 100, runs).read_bytes()
    experiments.main(["run", *places, "--only", "cartpole"])
    assert record.path_of(row, 100, runs).read_bytes() == before
