"""Serving beside a bare FastAPI and uvicorn server with the same net, and under updates."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from tests.benchmarks.child import OpenSubject
from tests.benchmarks.http_load import load, request_bytes
from tests.benchmarks.record import Raw
from tests.benchmarks.repeats import interleaved
from tests.benchmarks.tables import Table

OBSERVATION = [0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7, -0.8]
PATHS = {"rl-service": "/v1/policies/moon/act", "bare FastAPI": "/act"}


class Sizes(NamedTuple):
    seconds: float = 5.0
    repeats: int = 3
    batch_size: int = 1024
    num_clients: int = 32
    update_seconds: float = 60.0


QUICK = Sizes(0.5, 1, 64, 4, 8.0)


def measure(open_subject: OpenSubject, quick: bool) -> Raw:
    """By server: rates and times of each repeat; then what clients saw of updates."""
    sizes = QUICK if quick else Sizes()
    with TemporaryDirectory(prefix="rlbs") as folder:
        bundles = _write_bundles(Path(folder))
        return {
            "sizes": sizes._asdict(),
            "servers": _compare(open_subject, bundles[0], sizes),
            "updates": _updates(open_subject, Path(folder), bundles, sizes),
        }


def _compare(open_subject: OpenSubject, bundle: Path, sizes: Sizes) -> Raw:
    services = "tests.benchmarks.subjects.services"
    with (
        open_subject(f"{services}:RLService", arguments=[f"moon={bundle}"]) as ours,
        open_subject(f"{services}:BareFastAPI", bundle=str(bundle)) as bare,
    ):
        addresses = {"rl-service": ours.address(), "bare FastAPI": bare.address()}
        candidates = {
            name: partial(_one_server, address, PATHS[name], sizes)
            for name, address in addresses.items()
        }
        return dict(interleaved(candidates, sizes.repeats, warmups=1))


def _one_server(address: tuple[str, int], path: str, sizes: Sizes) -> dict[str, float]:
    single = request_bytes(address, path, {"observation": OBSERVATION})
    batch = request_bytes(address, path, {"observations": [OBSERVATION] * sizes.batch_size})
    one = load(address, single, 1, sizes.seconds)
    many = load(address, single, sizes.num_clients, sizes.seconds)
    batched = load(address, batch, 1, sizes.seconds)
    return {
        "one_p50_ms": one.p50_ms,
        "one_requests_per_s": one.requests_per_s,
        "many_requests_per_s": many.requests_per_s,
        "many_p50_ms": many.p50_ms,
        "many_p99_ms": many.p99_ms,
        "actions_per_s": batched.requests_per_s * sizes.batch_size,
        "num_failed": one.num_failed + many.num_failed + batched.num_failed,
    }


def _updates(open_subject: OpenSubject, folder: Path, bundles: list[Path], sizes: Sizes) -> Raw:
    """Promotes, rolls back and kills a replica while raw clients and ours go on asking."""
    from rl_service.policies.registry import PolicyRegistry

    registry = PolicyRegistry(str(folder / "registry"))
    for bundle in bundles:
        registry.register(bundle, "moon")
    registry.promote("moon", 1)
    arguments = ["moon", "--registry", registry.root, "--replicas", "2"]
    with open_subject(
        "tests.benchmarks.subjects.services:RLService", arguments=arguments
    ) as service:
        address = tuple(service.address())
        request = request_bytes(address, PATHS["rl-service"], {"observation": OBSERVATION})
        counts = {"requests": 0, "failed": 0}
        end = time.monotonic() + sizes.update_seconds
        clients = [
            threading.Thread(target=_play, args=(address, end, counts))
            for _ in range(sizes.num_clients // 2)
        ]
        events = [
            partial(registry.promote, "moon", 2),
            partial(registry.rollback, "moon"),
            service.kill_a_replica,
        ]
        disturber = threading.Thread(target=_disturb, args=(events, sizes.update_seconds))
        for thread in (*clients, disturber):
            thread.start()
        seen = load(address, request, sizes.num_clients // 2, sizes.update_seconds)
        for thread in (*clients, disturber):
            thread.join()
        return {
            "raw_requests": round(seen.requests_per_s * sizes.update_seconds),
            "raw_failed": seen.num_failed,
            "raw_reconnects": seen.num_reconnects,
            "client_requests": counts["requests"],
            "client_failed": counts["failed"],
        }


def _disturb(events: list[Any], seconds: float) -> None:
    for event in events:
        time.sleep(seconds / (len(events) + 1))
        event()


def _play(address: tuple[str, int], end: float, counts: dict[str, int]) -> None:
    """One session that goes on through everything."""
    from rl_service.serving.client import PolicyClient, PolicyServiceError

    url = f"http://{address[0]}:{address[1]}"
    with PolicyClient(url) as client, client.session("moon") as session:
        while time.monotonic() < end:
            counts["requests"] += 1
            try:
                session.act(OBSERVATION)
            except PolicyServiceError:
                counts["failed"] += 1


def _write_bundles(folder: Path) -> list[Path]:
    from tests.conftest import write_untrained_bundle

    paths = [folder / "one", folder / "two"]
    for seed, path in enumerate(paths):
        write_untrained_bundle(path, "LunarLander-v3", seed=seed)
    return paths


def tables(raw: Raw) -> list[Table]:
    sizes, servers, updates = raw["sizes"], raw["servers"], raw["updates"]
    keys = ("one_p50_ms", "one_requests_per_s", "many_requests_per_s", "many_p99_ms")
    rows = [
        (
            name,
            *(f"{median(sample[key] for sample in samples):,.1f}" for key in keys),
            f"{median(sample['actions_per_s'] for sample in samples):,.0f}",
            _ratio(servers, name),
        )
        for name, samples in servers.items()
    ]
    speed = Table(
        "Serving an MLP policy over HTTP",
        (
            "server",
            "one client: p50, ms",
            "requests/s",
            f"{sizes['num_clients']} clients: requests/s",
            "p99, ms",
            f"actions/s, batches of {sizes['batch_size']}",
            "beside the bare server",
        ),
        rows,
        "LunarLander-v3, JSON, one process that answers, clients on the same machine. The last "
        "column: requests/s of many clients, divided by the bare server's in the same repeat.",
    )
    changes = Table(
        "Promote, rollback and kill -9 of one of two replicas, under load",
        ("clients", "requests", "failed", "connections closed between requests"),
        [
            (
                "raw HTTP",
                f"{updates['raw_requests']:,}",
                str(updates["raw_failed"]),
                str(updates["raw_reconnects"]),
            ),
            (
                "PolicyClient, sessions",
                f"{updates['client_requests']:,}",
                str(updates["client_failed"]),
                "–",
            ),
        ],
        f"{sizes['update_seconds']:.0f} s, {sizes['num_clients']} clients, half of either kind.",
    )
    return [speed, changes]


def _ratio(servers: Raw, name: str) -> str:
    ratios = [
        sample["many_requests_per_s"] / bare["many_requests_per_s"]
        for sample, bare in zip(servers[name], servers["bare FastAPI"], strict=True)
    ]
    return f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
