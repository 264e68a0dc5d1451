"""The page in a browser: when it is ready, whether it stays smooth, how fast a play is."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import interleaved
from tests.benchmarks.tables import Table

READY_GOAL_S, PLAY_GOAL = 1.0, 15.0


class Sizes(NamedTuple):
    num_runs: int = 50
    num_iterations: int = 2000
    watched_s: float = 20.0
    play_s: float = 10.0
    repeats: int = 3


QUICK = Sizes(2, 20, 3.0, 1.0, 1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """By what is measured, its repeats."""
    sizes = QUICK if quick else Sizes()
    path = "tests.benchmarks.subjects.page:PageInBrowser"
    arguments = {"num_runs": sizes.num_runs, "num_iterations": sizes.num_iterations}
    with open_subject(path, **arguments) as subject:
        candidates = {
            "ready_s": subject.seconds_until_ready,
            "runs_s": subject.seconds_until_curves,
            "longest_task_s": lambda: subject.longest_task(sizes.watched_s),
            "frames_per_s": lambda: subject.frames_per_second(sizes.play_s),
        }
        return interleaved(candidates, sizes.repeats, warmups=1)


def tables(raw: Raw) -> list[Table]:
    """One row a figure."""
    sizes = Sizes()
    many = f"{sizes.num_runs} runs of {sizes.num_iterations:,} iterations"
    rows = [
        ("policies: ready (s)", "ready_s", f"{READY_GOAL_S:g}"),
        (f"{many}: all curves drawn (s)", "runs_s", ""),
        (f"{many}: longest task while curves grow (s)", "longest_task_s", ""),
        ("LunarLander in Play: frames/s", "frames_per_s", f"at least {PLAY_GOAL:g}"),
    ]
    return [
        Table(
            "The page, in Chromium",
            ("", "median", "least", "greatest", "goal"),
            [
                (text, *(f"{pick(raw[key]):.2f}" for pick in (median, min, max)), goal)
                for text, key, goal in rows
            ],
            f"`rl-service ui` and a headless browser on the same machine. Ready: from the request "
            f"to the list of policies. Drawn: until all {sizes.num_runs} curves stand in the "
            f"chart. A task is what keeps the page from answering; one run gets a new iteration "
            f"every 0.5 s meanwhile, for {sizes.watched_s:g} s.",
        )
    ]
