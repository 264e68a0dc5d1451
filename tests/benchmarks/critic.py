"""The GPT-2 critic: against our MLP, against the paper's way, and against its arithmetic."""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any, NamedTuple

from tests.benchmarks import flops
from tests.benchmarks.child import OpenSubject
from tests.benchmarks.nets import PAPER_CRITIC
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import Samples, interleaved, ratio
from tests.benchmarks.tables import Table

NUM_VALUES, NUM_EPOCHS = 128, 5  # Table I
TABLE_I = flops.GPT2Size(context_length=64, n_layer=2, n_embd=64, observation_size=8, action_size=0)
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"name": "mlp"},
    "default": {"name": "gpt2_critic"},
    "approximate": PAPER_CRITIC.model_dump(),
    "approximate, dropout 0.5": {**PAPER_CRITIC.model_dump(), "dropout": 0.5},
}
GOALS_AGAINST_MLP = {"default": 0.5, "approximate": 0.15, "approximate, dropout 0.5": 0.15}
GOAL_AGAINST_PAPER = 40
_PASSES = {
    "paper": 1,
    "window": 1,
    "window, dropout 0.5": 1,
    "approximate": 10,
    "approximate, dropout 0.5": 10,
    "mlp": 100,
}
"""Passes of one measurement, so that each takes a good part of a second."""


class Sizes(NamedTuple):
    num_env_runners: int = 2
    train_batch_size: int = 2048
    num_values: int = NUM_VALUES
    iterations: int = 1
    fewer_passes: int = 1
    """Divides those of `_PASSES`."""
    matrix_products: int = 20
    repeats: int = 5


QUICK = Sizes(0, 64, num_values=8, iterations=1, fewer_passes=100, matrix_products=1, repeats=1)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """Env steps a second of whole training; seconds of a pass; FLOP a second of a product."""
    sizes = QUICK if quick else Sizes()
    return {
        "num_values": sizes.num_values,
        "training": _training(open_subject, sizes),
        "passes": _passes(open_subject, sizes),
    }


def _training(open_subject: OpenSubject, sizes: Sizes) -> Samples:
    variants = {name: _variant(model, sizes) for name, model in MODELS.items()}
    path = "tests.benchmarks.subjects.trainings:Trainings"
    with open_subject(path, variants=variants) as trainings:
        candidates = {name: partial(trainings.train, name, sizes.iterations) for name in MODELS}
        return interleaved(candidates, sizes.repeats, warmups=1)


def _variant(model: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
    return {
        "env": {"id": "LunarLander-v3"},
        "model": model,
        "algorithm": {
            "train_batch_size": sizes.train_batch_size,
            "minibatch_size": sizes.num_values,
            "num_epochs": NUM_EPOCHS,
        },
        "resources": {"num_env_runners": sizes.num_env_runners, "num_envs_per_env_runner": 8},
    }


def _passes(open_subject: OpenSubject, sizes: Sizes) -> Samples:
    path = "tests.benchmarks.subjects.critic_passes:CriticPasses"
    with open_subject(path, num_values=sizes.num_values) as critics:
        candidates = {
            name: partial(critics.seconds_per_pass, name, max(1, passes // sizes.fewer_passes))
            for name, passes in _PASSES.items()
        }
        candidates["matmul"] = partial(critics.matmul_flop_per_s, sizes.matrix_products)
        return interleaved(candidates, sizes.repeats, warmups=1)


def tables(raw: Raw) -> list[Table]:
    """Whole training, single passes, and the arithmetic."""
    return [_training_table(raw["training"]), _pass_table(raw), _arithmetic_table()]


def _training_table(training: Raw) -> Table:
    rates = {name: [s["env_steps_per_s"] for s in samples] for name, samples in training.items()}
    return Table(
        "GPT-2 critic against MLP, whole training",
        ("critic", "env steps/s", "learning, µs/step", "of the MLP's env steps/s", "goal"),
        [
            (
                name,
                f"{median(rates[name]):,.0f}",
                f"{1e6 * median(s['learn_s_per_step'] for s in training[name]):.0f}",
                str(ratio(rates[name], rates["mlp"])),
                str(GOALS_AGAINST_MLP.get(name, "")),
            )
            for name in training
        ],
        "LunarLander-v3, batch 2048, minibatch 128, 5 epochs, 2 rollout workers with 8 envs each. "
        "default: the settings' defaults; approximate: Table I's critic (2 layers, 8 heads, 64 "
        "wide, K 64) in its fast approximation.",
    )


def _pass_table(raw: Raw) -> Table:
    num_values, passes = raw["num_values"], dict(raw["passes"])
    products = passes.pop("matmul")
    return Table(
        f"{num_values} values, forward and backward, on one core",
        (
            "critic",
            "ms",
            "times faster than the paper's way",
            "goal",
            "MFLOP",
            "GFLOP/s",
            "of peak",
        ),
        [
            _pass_row(name, seconds, passes["paper"], products, num_values)
            for name, seconds in passes.items()
        ],
        f"The paper's way: Hugging Face GPT-2 on an explicit 64-step window for each value, "
        f"dropout 0.5 on. MFLOP: what the function needs (the paper's way: what it does). Peak: "
        f"a 1024 × 1024 float32 matrix product on the same core in the same repeat, "
        f"{median(products) / 1e9:.0f} GFLOP/s.",
    )


def _pass_row(
    name: str, seconds: list[float], paper: list[float], products: list[float], num_values: int
) -> tuple[str, ...]:
    flop = flops.FORWARD_AND_BACKWARD * forward_flop(name, num_values)
    share = median(flop / s / peak for s, peak in zip(seconds, products, strict=True))
    return (
        name,
        f"{1e3 * median(seconds):.2f}",
        str(ratio(paper, seconds)),
        f"{GOAL_AGAINST_PAPER}" if name.startswith("approximate") else "",
        f"{flop / 1e6:.1f}",
        f"{flop / median(seconds) / 1e9:.1f}",
        f"{100 * share:.0f}%",
    )


def forward_flop(name: str, num_values: int) -> float:
    """FLOP of a forward pass to `num_values` values."""
    if name == "mlp":
        return num_values * flops.mlp_forward((TABLE_I.observation_size, 64, 64, 1))
    if name == "paper":
        return num_values * flops.paper_forward(TABLE_I)
    num_context = TABLE_I.context_length - 1
    if name.startswith("window"):
        return num_values * flops.gpt2_forward(TABLE_I, num_context, 1)
    return flops.gpt2_forward(TABLE_I, num_context, num_values)


def _arithmetic_table() -> Table:
    per_step = {name: forward_flop(name, NUM_VALUES) / NUM_VALUES for name in _PASSES}
    return Table(
        "Arithmetic of the critic per env step (MFLOP)",
        ("critic", "a value, forward", "forward and backward", f"values and {NUM_EPOCHS} epochs"),
        [
            (
                name,
                f"{flop / 1e6:.3f}",
                f"{flops.FORWARD_AND_BACKWARD * flop / 1e6:.3f}",
                f"{(1 + NUM_EPOCHS * flops.FORWARD_AND_BACKWARD) * flop / 1e6:.2f}",
            )
            for name, flop in per_step.items()
            if "dropout" not in name
        ],
        "C wide, L layers, P = K-1 context steps before V = 128 values, T = P + V, "
        "m_i = min(i+1, K): embeddings 2·C·O·T; layers 1…L-1: 24·C²·2T + 4·C·Σ_T(4·m_i-1); "
        "layer L: 8·C²·T + 20·C²·V + 4·C·Σ_V(2·m_i-1); head 2·C·V. Backward twice forward.",
    )
