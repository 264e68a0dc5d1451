"""POLICY on the command line: a folder, a name of the registry, or one of the package's."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rl_service.common.errors import BundleError, RegistryError
from rl_service.policies import load_bundle
from rl_service.policies.bundle_files import bundle_sha256
from rl_service.policies.locate import ZOO_FOLDER, find_policy, zoo_names
from rl_service.policies.registry import PolicyRegistry
from tests.conftest import WriteTestBundle

ROOT = Path(__file__).parents[3]


@pytest.fixture
def registered(in_tmp_path: Path, write_test_bundle: WriteTestBundle) -> Path:
    """The folder that the registry keeps the only version of `mine` in."""
    write_test_bundle(in_tmp_path / "bundle")
    registry = PolicyRegistry()
    return registry.fetch(registry.register(in_tmp_path / "bundle", "mine"))


@pytest.mark.parametrize("reference", ["mine", "mine@best", "mine:1"])
def test_a_name_is_looked_up_in_the_registry(registered: Path, reference: str) -> None:
    assert find_policy(reference) == registered


def test_a_folder_wins_over_a_name(registered: Path) -> None:
    assert find_policy("bundle") == Path("bundle")
    os.mkdir("mine")
    assert find_policy("mine") == Path("mine")


@pytest.mark.parametrize("name", zoo_names())
def test_each_policy_of_the_package_loads_and_says_how_it_was_made(name: str) -> None:
    folder = find_policy(f"zoo:{name}")
    provenance = load_bundle(folder).spec.provenance
    assert str(provenance["command"]) in (folder / "card.md").read_text(encoding="utf-8")
    assert len(str(provenance["git_commit"])) == 40


def test_the_documentation_lists_the_zoo() -> None:
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `zoo:([a-z0-9-]+)` \| -?[0-9]", page, re.MULTILINE)) == set(
        zoo_names()
    )
    assert all(len(bundle_sha256(ZOO_FOLDER / name)) == 64 for name in zoo_names())


@pytest.mark.parametrize("name", ["", ".", "..", "../policies", "lunarlander/", "LunarLander"])
def test_nothing_else_is_in_the_zoo(name: str) -> None:
    with pytest.raises(BundleError, match="known: zoo:acrobot-ppo, zoo:bipedalwalker-ppo"):
        find_policy(f"zoo:{name}")


def test_what_is_not_there_is_told_in_one_line(registered: Path) -> None:
    with pytest.raises(BundleError, match="policy no/where does not exist"):
        find_policy("no/where")
    with pytest.raises(RegistryError, match=r"^min is no folder here, and .* did you mean mine\?"):
        find_policy("min")
    with pytest.raises(RegistryError, match="has no alias production"):
        find_policy("mine@production")
