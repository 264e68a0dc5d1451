"""Imports go one way: a module may import from its own layer or from one above it in ORDER."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("rl_service", "custom_models", "tune_configs")

ORDER = [
    # The nets. Plain torch down to `nets`; only the two files after it know RLlib.
    ["custom_models.configs", "custom_models.spaces"],
    ["custom_models.history", "custom_models.model_store"],
    ["custom_models.actor", "custom_models.observation_text", "custom_models.language_model"],
    [
        "custom_models.critic",
        "custom_models.block_attention",
        "custom_models.dropout",
        "custom_models.transformer",
        "custom_models.heads",
    ],
    ["custom_models.mlp", "custom_models.gpt2_critic", "custom_models.llm_policy"],
    ["custom_models.nets"],
    ["custom_models.rllib_models"],
    ["custom_models.registry"],
    # The vocabulary.
    ["rl_service.errors", "rl_service.metrics", "rl_service.normalization"],
    ["rl_service.files"],
    # The service.
    ["tune_configs"],
    ["rl_service.config"],
    ["rl_service.envs"],
    ["rl_service.capacity"],
    [
        "rl_service.base_models",
        "rl_service.forkserver",
        "rl_service.machine",
        "rl_service.pretrained",
        "rl_service.process",
        "rl_service.ray_session",
    ],
    # How many rollout workers there should be; knows no Ray.
    ["rl_service.rollout.load"],
    ["rl_service.rollout.throughput"],
    ["rl_service.rollout.autoscaler"],
    ["rl_service.rollout"],
    ["rl_service.algorithms"],
    ["rl_service.policies"],
    ["rl_service.tracking", "rl_service.runs"],
    ["rl_service.registration", "rl_service.video"],
    ["rl_service.checks", "rl_service.diagnosis", "rl_service.evaluation"],
    ["rl_service.best_policy", "rl_service.trainer"],
    ["rl_service.training"],
    # Tuning; what needs no Ray first, so that a mistake in a file is told at once.
    ["rl_service.tuning", "rl_service.tuning.domains", "rl_service.tuning.storage"],
    ["rl_service.tuning.settings", "rl_service.tuning.space"],
    ["rl_service.tuning.load"],
    ["rl_service.tuning.observer", "rl_service.tuning.snapshot"],
    ["rl_service.tuning.report", "rl_service.tuning.trackers"],
    [
        "rl_service.tuning.resources",
        "rl_service.tuning.search",
        "rl_service.tuning.trial",
        "rl_service.tuning.tune_process",
        "rl_service.tuning.watch",
    ],
    ["rl_service.tuning.best"],
    ["rl_service.tuning.experiment"],
    ["rl_service.reporting"],
    # Serving; only the two files at its end know Ray.
    [
        "rl_service.serving",
        "rl_service.serving.errors",
        "rl_service.serving.limits",
        "rl_service.serving.logs",
        "rl_service.serving.metrics",
        "rl_service.serving.calls",
        "rl_service.serving.page",
    ],
    ["rl_service.serving.client", "rl_service.serving.haproxy"],
    ["rl_service.serving.edge"],
    ["rl_service.serving.schemas", "rl_service.serving.security", "rl_service.serving.sessions"],
    [
        "rl_service.serving.batching",
        "rl_service.serving.memory",
        "rl_service.serving.shared",
        "rl_service.serving.sources",
    ],
    ["rl_service.serving.loading"],
    ["rl_service.serving.rollouts"],
    ["rl_service.serving.engine"],
    ["rl_service.serving.openapi", "rl_service.serving.service"],
    ["rl_service.serving.api"],
    ["rl_service.serving.deployment"],
    ["rl_service.serving.server"],
    # A cluster on this machine, and jobs on any; nobody above them needs either.
    ["rl_service.cluster"],
    ["rl_service.jobs"],
    ["rl_service.cli"],
]

USES_RAY = (
    "rl_service.capacity",
    "custom_models.rllib_models",
    "custom_models.registry",
    "rl_service.rollout",
    "rl_service.algorithms",
    "rl_service.tracking",
    "rl_service.training",
    "rl_service.tuning.best",
    "rl_service.tuning.experiment",
    "rl_service.tuning.resources",
    "rl_service.tuning.search",
    "rl_service.tuning.trial",
    "rl_service.tuning.tune_process",
    "rl_service.tuning.watch",
    "rl_service.diagnosis",
    "rl_service.ray_session",
    "rl_service.cluster.provider",  # the autoscaler's process alone imports it
    "rl_service.cluster.dashboard",  # Ray's client for jobs, when it is asked for
    "rl_service.jobs.control",  # names its type
    "rl_service.serving.deployment",
    "rl_service.serving.server",
)


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
def modules() -> dict[str, Path]:
    """Every module of the project and its file."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported_names(path: Path, *, top_level_only: bool = False) -> Iterator[str]:
    """What a file imports, inside functions, too, unless told otherwise."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path} has a relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules() else node.module


def rank(module: str) -> int:
    """Index in ORDER of the longest entry that holds the module, -1 if none does."""
    fits = [
        (len(entry), index)
        for index, entries in enumerate(ORDER)
        for entry in entries
        if is_in(module, entry)
    ]
    return max(fits)[1] if fits else -1


def test_every_module_has_its_place_in_the_order() -> None:
    roots = {"rl_service", "custom_models"}  # their __init__ hold a docstring and a version
    assert [name for name in modules() if rank(name) < 0 and name not in roots] == []


def test_imports_go_only_up_the_order() -> None:
    offenders = [
        f"{name} imports {imported}"
        for name, path in modules().items()
        for imported in imported_names(path)
        if imported in modules() and rank(imported) > rank(name)
    ]
    assert offenders == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {
        name: {other for other in imported_names(path, top_level_only=True) if other in modules()}
        for name, path in modules().items()
    }
    while graph:  # take away modules that import nothing more, until only circles are left
        done = {name for name, others in graph.items() if not others - {name}}
        if not done:
            break
        graph = {name: others - done for name, others in graph.items() if name not in done}
    assert graph == {}


def test_only_a_few_packages_know_ray() -> None:
    offenders = [
        name
        for name, path in modules().items()
        if any(is_in(imported, "ray") for imported in imported_names(path))
        and not any(is_in(name, package) for package in USES_RAY)
    ]
    assert offenders == []
