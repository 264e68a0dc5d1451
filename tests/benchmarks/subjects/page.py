"""`rl-service ui` with many runs, and Chromium that looks at it."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from rl_service.config.settings import Settings
from rl_service.training.run import Run

CHROMIUM = "/usr/bin/chromium"
PATIENCE_S = 120.0
_WATCH_TASKS = """
window.longest = 0;
new PerformanceObserver(list => {
  for (const entry of list.getEntries()) window.longest = Math.max(window.longest, entry.duration);
}).observe({ type: "longtask" });
"""


class PageInBrowser:
    """Args: num_runs and num_iterations, of the runs that there are to see."""

    def __init__(self, num_runs: int, num_iterations: int) -> None:
        self._num_runs, self._num_iterations = num_runs, num_iterations
        self._stack = ExitStack()
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._runs = [self._write_run(folder, seed) for seed in range(num_runs)]
        self._url = self._start(folder)
        playwright = self._stack.enter_context(sync_playwright())
        self._browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        self._stack.callback(self._browser.close)

    def close(self) -> None:
        self._stack.close()

    def _write_run(self, folder: Path, seed: int) -> Run:
        settings = Settings.model_validate(
            {
                "env": {"id": "LunarLander-v3"},
                "algorithm": {"name": "ppo", "actor_lr": 1e-4 * (seed + 1)},  # a group each
                "tracking": {"output_dir": str(folder)},
                "seed": seed,
            }
        )
        run = Run.create(settings, command=[])
        lines = [json.dumps(self._row(i, seed)) for i in range(self._num_iterations)]
        (run.path / "progress.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return run

    def _row(self, iteration: int, seed: int) -> dict[str, float]:
        return {
            "training_iteration": iteration + 1,
            "num_env_steps_sampled_lifetime": 2048 * (iteration + 1),
            "time_total_s": 0.5 * (iteration + 1),
            "episode_return_mean": 200.0 * math.tanh(iteration / 500) + seed + iteration % 17,
            "policy_loss": 0.01 / (1 + iteration),
            "env_steps_per_s": 5000.0,
        }

    def _start(self, folder: Path) -> str:
        arguments = ("ui", str(folder), "--port", "0")
        process = self._stack.enter_context(  # waits for its end
            subprocess.Popen(
                [sys.executable, "-m", "rl_service.cli", *arguments],
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                text=True,
            )
        )
        self._stack.callback(process.send_signal, signal.SIGINT)
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        return found[0]

    def _open(self, view: str) -> Page:
        page = self._browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(1000 * PATIENCE_S)
        page.add_init_script(_WATCH_TASKS)
        page.goto(f"{self._url}/#/{view}")
        return page

    def seconds_until_ready(self) -> float:
        """From the request to the list of policies."""
        started = time.perf_counter()
        page = self._open("policies")
        page.locator("tbody tr").first.wait_for()
        took = time.perf_counter() - started
        page.close()
        return took

    def _show_all(self) -> Page:
        page = self._open("runs")
        page.locator("tbody tr").first.wait_for()
        page.get_by_label("All shown").check()
        page.locator("ul.legend li").nth(self._num_runs - 1).wait_for()
        return page

    def seconds_until_curves(self) -> float:
        """From the request to the curves of all runs."""
        started = time.perf_counter()
        page = self._show_all()
        took = time.perf_counter() - started
        page.close()
        return took

    def longest_task(self, watched_s: float) -> float:
        """Seconds that the page was busy at most, while a run goes on and all are shown."""
        page = self._show_all()
        page.evaluate("window.longest = 0")
        run, deadline = self._runs[0], time.monotonic() + watched_s
        while time.monotonic() < deadline:
            run.append_progress(self._row(len(run.read_progress()), 0))
            page.wait_for_timeout(500)
        longest: float = page.evaluate("window.longest")
        page.close()
        return longest / 1000

    def frames_per_second(self, play_s: float) -> float:
        """Frames that Play shows of the lander."""
        page = self._open("play/example-lunarlander")
        page.get_by_role("button", name="Start").click()
        frame = "Number(document.querySelector('.facts dd').textContent || -1)"
        while (first := page.evaluate(frame)) < 5:
            page.wait_for_timeout(50)
        started = time.perf_counter()
        page.wait_for_timeout(1000 * play_s)
        frames = page.evaluate(frame) - first
        took = time.perf_counter() - started
        page.close()
        return float(frames / took)
