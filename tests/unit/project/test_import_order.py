"""Imports go one way: a module may import from its own layer or from one above it in ORDER."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PACKAGES = ("rl_service", "custom_models", "tune_configs")

ORDER = [
    ["custom_models", "tune_configs"],  # the nets know nothing of the service
    ["rl_service.common"],
    ["rl_service.config"],
    ["rl_service.runtime"],
    ["rl_service.rollout"],
    ["rl_service.algorithms"],
    ["rl_service.policies"],
    ["rl_service.training"],
    ["rl_service.tuning"],
    ["rl_service.page"],
    ["rl_service.serving"],
    ["rl_service.cluster"],
    ["rl_service.cli"],
]

USES_RAY = (
    "custom_models.rllib_models",
    "rl_service.runtime",
    "rl_service.rollout",
    "rl_service.algorithms",
    "rl_service.training",
    "rl_service.tuning",
    "rl_service.serving.deployment",
    "rl_service.serving.server",
    "rl_service.cluster.provider",  # Ray's autoscaler imports it, and who configures that
    "rl_service.cluster.dashboard",  # Ray's client for jobs, when it is asked for
    "rl_service.cluster.jobs",  # names its type
    "rl_service.cli.doctor",  # asks whether Ray starts
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


def test_one_file_imports_what_is_private_to_ray() -> None:
    private = re.compile(r"\bray(\.\w+)*\._[a-z]|^from ray\S* import (\w+, )*_", re.MULTILINE)
    found = {name for name, path in modules().items() if private.search(path.read_text("utf-8"))}
    assert found == {"rl_service.runtime.ray_session"}
