"""Tables of the GPU's numbers."""

from __future__ import annotations

from statistics import median

from tests.benchmarks.gpu import acting, language_model
from tests.benchmarks.record import Raw, Tables
from tests.benchmarks.repeats import ratio
from tests.benchmarks.tables import Table

NET_NAMES = {"mlp": "MLP actor and critic", "gpt2": "GPT-2 critic (Table I, approximate)"}


def _tables_of_nets(raw: Raw) -> list[Table]:
    """One table a net."""
    peaks = {name: median(values) for name, values in raw["peaks"].items()}
    small = [_table(net, cases, peaks) for net, cases in raw["nets"].items()]
    return [*small, language_model.table(raw["language_model"], raw["peaks"])]


def _table(net: str, cases: Raw, peaks: dict[str, float]) -> Table:
    return Table(
        f"{NET_NAMES[net]} on one GPU, forward and backward",
        (
            *("values", "way", "ms", "arithmetic, ms", "memory, ms"),
            *("times the least", "faster than float32", "values/s"),
        ),
        [
            _row(num_values, way, case, peaks)
            for num_values, case in cases.items()
            for way in case["seconds"]
        ],
        f"The least: the greater of the arithmetic at the measured peak of a matrix product "
        f"(float32 {peaks['float32'] / 1e12:.0f}, bf16 {peaks['bf16'] / 1e12:.0f} TFLOP/s) and "
        f"the bytes that must move at the measured {peaks['copy'] / 1e12:.2f} TB/s of a copy.",
    )


def _row(num_values: str, way: str, case: Raw, peaks: dict[str, float]) -> tuple[str, ...]:
    seconds = median(case["seconds"][way])
    is_bf16 = way.startswith("bf16")
    arithmetic = case["flop"] / peaks["bf16" if is_bf16 else "float32"]
    memory = case["bytes"]["bf16" if is_bf16 else "float32"] / peaks["copy"]
    return (
        f"{int(num_values):,}",
        way,
        f"{1e3 * seconds:.3f}",
        f"{1e3 * arithmetic:.4f}",
        f"{1e3 * memory:.4f}",
        f"{seconds / max(arithmetic, memory):.1f}",
        str(ratio(case["seconds"]["float32"], case["seconds"][way])),
        f"{int(num_values) / seconds:,.0f}",
    )


TABLES: dict[str, Tables] = {"nets": _tables_of_nets, "acting": acting.tables}
"""By what is measured, in the order of the page."""
