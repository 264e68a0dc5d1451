"""The registry: versions, aliases, two writers at once, kills, hostile names."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import fsspec
import pytest

from rl_service.common import files
from rl_service.common.errors import BundleError, OutputError, RegistryError
from rl_service.policies import load_bundle
from rl_service.policies.bundle_files import bundle_sha256
from rl_service.policies.locate import ZOO_FOLDER
from rl_service.policies.policy_versions import PolicyVersion
from rl_service.policies.registry import PolicyRegistry
from tests.conftest import WriteTestBundle
from tests.support.kills import run_and_kill_at

NAME = "cartpole-v1-mlp-ppo"

Bundles = Callable[..., Path]


@pytest.fixture
def bundle(tmp_path: Path, write_test_bundle: WriteTestBundle) -> Bundles:
    """Writes a bundle with a seed and a score, each in its own folder."""

    def write(seed: int = 0, score: float | None = 9.5, env_id: str = "CartPole-v1") -> Path:
        path = tmp_path / "bundles" / f"{env_id}-{seed}-{score}"
        evaluation = {} if score is None else {"episode_return_mean": score}
        write_test_bundle(path, env_id, seed=seed, evaluation=evaluation)
        return path

    return write


@pytest.fixture(params=["folder", "file", "memory"])
def registry(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PolicyRegistry:
    monkeypatch.setenv("HOME", str(tmp_path))  # the cache of a registry elsewhere lies below it
    root = tmp_path / "registry"
    roots = {"folder": str(root), "file": root.as_uri(), "memory": f"memory:/{root}"}
    return PolicyRegistry(roots[request.param])


def aliases(version: PolicyVersion) -> tuple[int, tuple[str, ...]]:
    return version.version, version.aliases


def test_a_registered_bundle_is_found_by_name_version_and_alias(
    registry: PolicyRegistry, bundle: Bundles
) -> None:
    first = registry.register(bundle(seed=1), NAME)
    assert (first.name, first.version, first.aliases) == (NAME, 1, ("best",))
    assert (first.env, first.model, first.episode_return_mean) == ("CartPole-v1", "mlp", 9.5)
    second = registry.register(bundle(seed=2), NAME)
    assert aliases(second) == (2, ())  # not higher than the best
    assert registry.names() == [NAME]
    assert registry.versions(NAME) == [first, second]
    for reference, version in (("", first), ("@best", first), (":1", first), (":2", second)):
        assert registry.resolve(NAME + reference) == version


def test_a_fetched_policy_is_the_one_that_was_registered(
    registry: PolicyRegistry, bundle: Bundles
) -> None:
    version = registry.register(bundle(), NAME)
    folder = registry.fetch(version)
    assert load_bundle(folder).spec == load_bundle(bundle()).spec
    assert registry.fetch(version) == folder
    assert sorted(os.listdir(folder)) == ["card.md", "policy.json", "policy.safetensors"]


def test_another_process_of_the_same_root_sees_each_change(
    registry: PolicyRegistry, bundle: Bundles
) -> None:
    other = PolicyRegistry(registry.root)
    registry.register(bundle(seed=1), NAME)
    assert other.aliases(NAME) == {"best": 1}
    registry.promote(NAME, 1)
    assert other.aliases(NAME) == {"best": 1, "production": 1}


def test_the_same_bundle_is_not_registered_twice(registry: PolicyRegistry, bundle: Bundles) -> None:
    first = registry.register(bundle(seed=1), NAME)
    registry.register(bundle(seed=2), NAME)
    assert registry.register(bundle(seed=1), NAME) == first
    assert len(registry.versions(NAME)) == 2


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ((5.0, 6.0), 2),
        ((6.0, 5.0), 1),
        ((5.0, 5.0), 1),
        ((None, -100.0), 2),
        ((5.0, None), 1),
        ((None, None), 1),
    ],
)
def test_best_moves_to_a_higher_score_alone(
    tmp_path: Path, bundle: Bundles, scores: tuple[float | None, ...], best: int
) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    for seed, score in enumerate(scores):
        registry.register(bundle(seed, score), NAME)
    assert registry.aliases(NAME) == {"best": best}


def test_a_score_in_another_environment_is_not_compared(tmp_path: Path, bundle: Bundles) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    registry.register(bundle(score=1.0), NAME)
    registry.register(bundle(score=2.0, env_id="Acrobot-v1"), NAME)
    assert registry.aliases(NAME) == {"best": 1}


def test_promote_keeps_what_was_in_production_and_rollback_swaps_them(
    registry: PolicyRegistry, bundle: Bundles
) -> None:
    for seed in (1, 2, 3):
        registry.register(bundle(seed), NAME)
    with pytest.raises(RegistryError, match="no previous version to go back to"):
        registry.rollback(NAME)
    assert aliases(registry.promote(NAME, 2)) == (2, ("production",))
    assert registry.resolve(NAME).version == 2  # no longer the best
    assert registry.aliases(NAME) == {"best": 1, "production": 2}
    registry.promote(NAME, 3)
    registry.promote(NAME, 3)  # again: what is previous stays
    assert registry.aliases(NAME) == {"best": 1, "production": 3, "previous": 2}
    assert registry.rollback(NAME).version == 2
    assert registry.aliases(NAME) == {"best": 1, "production": 2, "previous": 3}
    assert registry.rollback(NAME).version == 3


def test_a_failed_version_is_withdrawn_once_whoever_asks(
    registry: PolicyRegistry, bundle: Bundles
) -> None:
    for seed in (1, 2, 3):
        registry.register(bundle(seed), NAME)
    for version in (1, 2, 3):
        registry.promote(NAME, version)
    for _ in range(2):  # two services have seen it fail
        registry.withdraw(NAME, 3, to=1)
        assert registry.aliases(NAME) == {"best": 1, "production": 1, "previous": 3}
    registry.promote(NAME, 2)
    registry.withdraw(NAME, 3, to=1)  # somebody has decided otherwise meanwhile
    assert registry.resolve(NAME).version == 2


def test_any_other_alias_moves_alone(tmp_path: Path, bundle: Bundles) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    for seed in (1, 2):
        registry.register(bundle(seed), NAME)
    registry.promote(NAME, 1, alias="canary")
    assert aliases(registry.promote(NAME, 2, alias="canary")) == (2, ("canary",))
    assert registry.aliases(NAME) == {"best": 1, "canary": 2}


def test_an_exported_bundle_is_a_whole_one(registry: PolicyRegistry, bundle: Bundles) -> None:
    registry.register(bundle(), NAME)
    destination = bundle().parent / "exported"
    assert registry.export(f"{NAME}@best", destination) == destination
    assert load_bundle(destination).spec == load_bundle(bundle()).spec
    with pytest.raises(RegistryError, match="exists already; export into a new folder"):
        registry.export(NAME, destination)
    (bundle().parent / "file").touch()
    with pytest.raises(OutputError):
        registry.export(NAME, bundle().parent / "file" / "x")


@pytest.mark.parametrize("file", ["policy.json", "policy.safetensors", "card.md"])
def test_a_broken_bundle_is_refused_and_leaves_nothing(
    tmp_path: Path, bundle: Bundles, file: str
) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    path = bundle()
    if file == "card.md":
        (path / file).unlink()
    else:
        (path / file).write_bytes((path / file).read_bytes()[:-20])
    with pytest.raises(BundleError, match=file):
        registry.register(path, NAME)
    assert not (tmp_path / "registry").exists()


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "/x", "a/b", "a\\b", "A", "-x", ".x", "a b", "a\n", "a\0", "ä", "٣",
     "a" * 101, "zoo", "a:b", "a@b", "%2e%2e"],
)  # fmt: skip
def test_no_path_can_be_made_of_a_name(
    registry: PolicyRegistry, bundle: Bundles, name: str
) -> None:
    version = registry.register(bundle(), NAME)
    for use in (
        registry.versions,
        registry.aliases,
        registry.rollback,
        partial(registry.register, bundle()),
        partial(registry.promote, version=1),
    ):
        with pytest.raises(RegistryError) as raised:
            use(name)
        assert "\n" not in str(raised.value)
    with pytest.raises(RegistryError):
        registry.fetch(version._replace(name=name))
    if name != "zoo":
        with pytest.raises(RegistryError):
            registry.promote(NAME, 1, alias=name)
    assert registry.names() == [NAME]


@pytest.mark.parametrize(
    ("reference", "part"),
    [
        ("cartpol-v1-mlp-ppo", f"did you mean {NAME}?"),
        ("nothing-like-it", f"known: {NAME}"),
        (f"{NAME}@worst", f"has no alias worst; known: {NAME}@best"),
        (f"{NAME}:2", "has no version 2; there are 1 to 1"),
        (f"{NAME}:0", "'0' in policy"),
        (f"{NAME}:x", "is no version; give a number from 1"),
        (f"{NAME}:", "is no version"),
        (f"{NAME}:1:1", "is no version"),
        (f"{NAME}@", "is no alias"),
        (f"{NAME}@best@best", "is no alias"),
        (f"{NAME}@../best", "is no alias"),
        ("", "is no policy name"),
    ],
)
def test_a_reference_to_nothing_says_what_there_is(
    tmp_path: Path, bundle: Bundles, reference: str, part: str
) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    registry.register(bundle(), NAME)
    with pytest.raises(RegistryError) as raised:
        registry.resolve(reference)
    assert part in str(raised.value)


def test_an_empty_registry_says_how_policies_get_there(in_tmp_path: Path) -> None:
    registry = PolicyRegistry()
    assert (registry.root, registry.names()) == (str(in_tmp_path / "policies"), [])
    with pytest.raises(RegistryError, match="none yet; rl-service train registers its best"):
        registry.resolve("x")
    assert os.listdir(in_tmp_path) == []


def test_the_root_comes_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_SERVICE_REGISTRY", str(tmp_path / "shared"))
    assert PolicyRegistry().root == str(tmp_path / "shared")
    assert PolicyRegistry("~/mine").root == str(Path.home() / "mine")


@pytest.mark.parametrize("root", ["nonsense://x", "/dev/null/x"])
def test_a_root_that_cannot_be_used_is_one_line(bundle: Bundles, root: str) -> None:
    with pytest.raises(RegistryError, match="the policy registry") as raised:
        PolicyRegistry(root).register(bundle(), NAME)
    assert "\n" not in str(raised.value)


def test_a_damaged_history_is_told_with_its_file(tmp_path: Path, bundle: Bundles) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    registry.register(bundle(), NAME)
    (tmp_path / "registry" / NAME / "history" / "00000001.json").write_text("{}")
    with pytest.raises(RegistryError, match=r"history/00000001\.json .* is damaged"):
        registry.aliases(NAME)


def test_what_else_lies_in_the_root_is_no_policy(tmp_path: Path) -> None:
    for name in ("Notes", ".cache", "empty", "zoo"):
        (tmp_path / name).mkdir()
    (tmp_path / "readme.txt").touch()
    assert PolicyRegistry(str(tmp_path)).names() == []


def test_a_cached_bundle_that_was_damaged_is_fetched_again(
    tmp_path: Path, bundle: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    registry = PolicyRegistry("memory://damaged")
    version = registry.register(bundle(), NAME)
    cached = registry.fetch(version)
    assert cached.is_relative_to(tmp_path / ".cache")
    (cached / "policy.safetensors").write_bytes(b"")
    load_bundle(registry.fetch(version))


REGISTER = """
import sys
from pathlib import Path
from rl_service.policies.registry import PolicyRegistry
root, name, *bundles = sys.argv[1:]
registry = PolicyRegistry(root)
import rl_service.policies.bundle
print("ready", flush=True)
sys.stdin.readline()
for bundle in bundles:
    print(registry.register(Path(bundle), name).version, flush=True)
"""


def test_two_processes_that_register_at_once_lose_nothing(tmp_path: Path, bundle: Bundles) -> None:
    root = tmp_path / "registry"
    shares = [[str(bundle(seed, float(seed))) for seed in range(a, 16, 2)] for a in (0, 1)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", REGISTER, str(root), NAME, *share],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for share in shares
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    outputs = [process.communicate("\n", timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sorted(int(line) for output in outputs for line in output.split()) == [*range(1, 17)]
    registry = PolicyRegistry(str(root))
    versions = registry.versions(NAME)
    assert [version.version for version in versions] == [*range(1, 17)]
    assert {version.episode_return_mean for version in versions} == {float(s) for s in range(16)}
    assert registry.resolve(f"{NAME}@best").episode_return_mean == 15.0
    assert {load_bundle(registry.fetch(version)).spec.env.id for version in versions}


def promote_at_once(registry: PolicyRegistry) -> None:
    threads = [
        threading.Thread(target=registry.promote, args=(NAME, 1, f"alias-{i}")) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("scheme", ["", "memory:/"])
def test_threads_that_promote_at_once_each_leave_their_mark(
    tmp_path: Path, bundle: Bundles, scheme: str
) -> None:
    registry = PolicyRegistry(f"{scheme}{tmp_path}/registry")
    registry.register(bundle(), NAME)
    promote_at_once(registry)
    assert registry.aliases(NAME) == {"best": 1} | {f"alias-{i}": 1 for i in range(8)}


def test_a_kill_at_any_moment_of_a_registration_leaves_the_old_or_the_new_state(
    tmp_path: Path, bundle: Bundles
) -> None:
    old, new = bundle(1, 1.0), bundle(2, 2.0)
    load_bundle(new)  # what a first load imports is no part of what is killed
    states = []
    was_killed = True
    while was_killed:
        root = tmp_path / "registry" / str(len(states))
        registry = PolicyRegistry(str(root))
        registry.register(old, NAME)
        moment = len(states) + 1
        was_killed = run_and_kill_at(moment, partial(registry.register, new, NAME))

        states.append(registry.aliases(NAME))
        assert len(registry.versions(NAME)) == states[-1]["best"]
        load_bundle(registry.fetch(registry.resolve(NAME)))
        assert registry.register(new, NAME).aliases == ("best",)  # goes on as if nothing had been
    assert states[0] == {"best": 1}
    assert states[-1] == {"best": 2}
    assert len(states) > 20


def test_what_a_killed_process_left_goes_after_a_day(tmp_path: Path, bundle: Bundles) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    registry.register(bundle(1), NAME)
    bundles, history = (tmp_path / "registry" / NAME / name for name in ("bundles", "history"))
    for name, age_s in (("old", 2 * 86400), ("young", 60)):
        (bundles / f".copying-{name}").mkdir()
        (history / f".writing-{name}").touch()
        for path in (bundles / f".copying-{name}", history / f".writing-{name}"):
            os.utime(path, (path.stat().st_mtime - age_s,) * 2)
    registry.register(bundle(2), NAME)
    assert [path.name for path in bundles.glob(".*")] == [".copying-young"]
    assert [path.name for path in history.glob(".*")] == [".writing-young"]
    assert len(registry.versions(NAME)) == 2


def test_threads_that_clear_at_once_disturb_nobody(tmp_path: Path, bundle: Bundles) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    registry.register(bundle(), NAME)
    history = tmp_path / "registry" / NAME / "history"
    for number in range(200):
        path = history / f".writing-{number}"
        path.touch()
        os.utime(path, (0, 0))
    promote_at_once(registry)
    assert list(history.glob(".*")) == []


def damage(folder: Path, kind: str) -> None:
    weights = folder / "policy.safetensors"
    if kind == "missing":
        weights.unlink()
    elif kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:-20])
    elif kind == "changed":
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    else:
        shutil.rmtree(folder)


@pytest.mark.parametrize("kind", ["missing", "truncated", "changed", "gone"])
@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_damaged_bundle_is_repaired_by_registering_it_again(
    kind: str,
    can_exchange: bool,
    tmp_path: Path,
    bundle: Bundles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not can_exchange:
        monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    registry = PolicyRegistry(str(tmp_path / "registry"))
    version = registry.register(bundle(), NAME)
    folder = registry.fetch(version)
    damage(folder, kind)
    assert registry.register(bundle(), NAME) == version
    assert bundle_sha256(registry.fetch(version)) == version.sha256
    load_bundle(folder)
    assert os.listdir(folder.parent) == [version.sha256]  # and nothing else is left
    assert len(registry.versions(NAME)) == 1


def test_a_damaged_bundle_elsewhere_is_repaired_too(
    tmp_path: Path, bundle: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    registry = PolicyRegistry("memory://repaired")
    version = registry.register(bundle(), NAME)
    path = f"/repaired/{NAME}/bundles/{version.sha256}/policy.safetensors"
    fsspec.filesystem("memory").pipe_file(path, b"half")
    with pytest.raises(BundleError, match="damaged"):
        registry.fetch(version)
    registry.register(bundle(), NAME)
    load_bundle(registry.fetch(version))


def test_a_bundle_is_registered_under_what_it_is(tmp_path: Path, bundle: Bundles) -> None:
    registry = PolicyRegistry(str(tmp_path / "registry"))
    assert registry.register(bundle()).name == "cartpole-v1-mlp"  # by no algorithm
    assert registry.register(ZOO_FOLDER / "lunarlander").name == "lunarlander-v3-gpt2_critic-ppo"
