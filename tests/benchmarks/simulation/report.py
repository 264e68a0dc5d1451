"""Tables of the model: what it is fed with, how well it does, what it says of clusters."""

from __future__ import annotations

from collections.abc import Callable

from tests.benchmarks.record import Raw
from tests.benchmarks.simulation.calibration import MINIBATCHES, busy_speed, times_of
from tests.benchmarks.simulation.pipeline import Line, ceiling
from tests.benchmarks.simulation.predictions import GPU_ACTOR_S, GPU_CRITIC_S, SATURATED
from tests.benchmarks.tables import Table


def tables(raw: Raw) -> list[Table]:
    """Of measurements and predictions together."""
    return [_times_table(raw), _check_table(raw), _rate_table(raw), _wait_table(raw)]


def _times_table(raw: Raw) -> Table:
    times = times_of(raw)
    steps = raw["regimes"][0]["env_steps"]
    rows = [
        ("vector step", f"{1e3 * times.vector_step_s:.3f} ms"),
        ("its spread (standard deviation)", f"{1e3 * times.vector_step_std_s:.3f} ms"),
        ("request, in the worker", _line_text(times.request)),
        ("putting weights into the object store", f"{1e3 * times.put_s:.2f} ms a batch"),
        ("asking a worker", f"{1e3 * times.dispatch_s:.2f} ms"),
        ("taking in its batch", _line_text(times.collect)),
        ("actor", _line_text(times.actor)),
        ("critic", _line_text(times.critic)),
        ("rest of an iteration", f"{1e3 * times.rest_s:.1f} ms"),
        ("from worker to learner", f"{times.bytes_per_step:.0f} bytes per env step"),
        ("weights", f"{times.weight_bytes:,.0f} bytes"),
        ("speed of a core while all are busy", f"{busy_speed(raw):.2f} of one that works alone"),
    ]
    return Table(
        "What the model is fed with",
        ("part", "measured"),
        rows,
        f"LunarLander-v3, MLP, {raw['num_envs']} envs a worker, {raw['num_epochs']} epochs of "
        f"{MINIBATCHES} minibatches; each part alone on {raw['cores']} cores, medians. A fixed "
        f"time and one per env step come from two sizes. The learner then takes in at most "
        f"{ceiling(times, steps):,.0f} env steps/s in batches of {steps}.",
    )


def _line_text(line: Line) -> str:
    return f"{1e3 * line.fixed_s:.2f} ms + {1e6 * line.per_step_s:.2f} µs per env step"


def _check_table(raw: Raw) -> Table:
    return Table(
        "The model against real workers",
        ("batch", "workers", "measured, env steps/s", "model", "error", "waiting", "model"),
        [_check_row(check) for check in raw["checks"]],
        f"Learner and workers share {raw['cores']} cores, and the model knows it: more workers "
        f"than free cores gain nothing. Waiting: share of an iteration in which the learner does "
        f"not learn. The trainings took turns with the parts above, and none of them feeds it.",
    )


def _check_row(check: Raw) -> tuple[str, ...]:
    measured, predicted = check["measured"], check["predicted"]
    error = predicted["env_steps_per_s"] / measured["env_steps_per_s"] - 1.0
    return (
        f"{check['regime']}, {check['env_steps']}",
        str(check["workers"]),
        f"{measured['env_steps_per_s']:,.0f}",
        f"{predicted['env_steps_per_s']:,.0f}",
        f"{100 * error:+.0f}%",
        f"{100 * measured['wait_share']:.0f}%",
        f"{100 * predicted['wait_share']:.0f}%",
    )


def _rate_table(raw: Raw) -> Table:
    cluster, all_curves = raw["cluster"], raw["curves"]
    regimes = "; ".join(
        f"{each['name']}: {each['env_steps']} env steps{' a worker' * each['per_worker']}"
        for each in raw["regimes"]
    )
    saturated = (
        f"{100 * SATURATED:.0f}% of the ceiling from",
        *(str(curve["saturates_at"] or "never") for curve in all_curves),
    )
    return Table(
        "Predicted env steps/s",
        _columns(raw),
        [*_rows(all_curves, lambda point: f"{point['env_steps_per_s']:,.0f}"), saturated],
        f"Nodes of {cluster['cores_per_node']} cores, {8e-9 * cluster['bytes_per_s']:g} Gbit/s "
        f"each way, {1e3 * cluster['latency_s']:g} ms; the learner has a core of the first. "
        f"{regimes}. GPU: actor {1e6 * GPU_ACTOR_S:g} and critic {1e6 * GPU_CRITIC_S:g} µs per "
        f"env step, as measured on an H100 ([speed.md](speed.md)); all else as measured here. "
        f"Ceiling: what the learner can take in.",
    )


def _wait_table(raw: Raw) -> Table:
    return Table(
        "Predicted share of waiting",
        _columns(raw),
        _rows(raw["curves"], lambda point: f"{100 * point['wait_share']:.0f}%"),
        "Share of an iteration in which the learner does not learn.",
    )


def _columns(raw: Raw) -> tuple[str, ...]:
    return ("workers", *(curve["name"] for curve in raw["curves"]))


def _rows(all_curves: list[Raw], show: Callable[[Raw], str]) -> list[tuple[str, ...]]:
    return [
        (str(points[0]["workers"]), *map(show, points))
        for points in zip(*(curve["points"] for curve in all_curves), strict=True)
    ]
