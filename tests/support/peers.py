"""Learners in threads of one process, connected as those of a training are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.distributed

from rl_service.algorithms.peers import Peers, connect
from rl_service.runtime.machine import LOOPBACK

T = TypeVar("T")


def together(size: int, work: Callable[[Mapping[str, Peers]], T]) -> list[T]:
    """What each of so many learners returns, by rank; all of them work at once.

    If one raises, nobody waits for it.
    """
    store, cpu = torch.distributed.HashStore(), torch.device("cpu")  # type: ignore[attr-defined]
    connected: dict[int, Mapping[str, Peers]] = {}

    def run(rank: int) -> T:
        connected[rank] = connect(store, rank, size, LOOPBACK, cpu)
        try:
            return work(connected[rank])
        except BaseException:
            for each in list(connected.values()):
                for net in each.values():
                    net.give_up()
            raise
        finally:
            del connected[rank]

    with ThreadPoolExecutor(size) as threads:
        started = [threads.submit(run, rank) for rank in range(size)]
        return [each.result() for each in started]
