"""What the learners of a training do together: they add up tensors, and follow the first one."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from rl_service.common.errors import LearnerLostError

NETS = ("actor", "critic")
"""Each has a group of its own, since both may learn at once, in two threads."""
dist: Any = torch.distributed
"""Its types export neither stores nor groups."""
_CONNECT_TIMEOUT = timedelta(seconds=60)
_TIMEOUT = timedelta(minutes=30)  # a learner may compute so long while the others wait for it
_LOOK = timedelta(seconds=1)


class Peers:
    """The learners that compute the gradients of a net together, as one of them sees them.

    All of them call the same methods in the same order. By default there is one, which does
    nothing here.

    Args:
        group: that connects them, of gloo or NCCL; None for one learner.
        rank: of this one; the first one is in the process of the training.
        size: how many there are.
        device: of the net.
    """

    def __init__(
        self, group: Any = None, rank: int = 0, size: int = 1, device: torch.device | None = None
    ) -> None:
        self.rank, self.size = rank, size
        self._group, self._device = group, device
        self._is_lost = False

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def bounds(self, num_rows: int) -> tuple[int, int]:
        """The first of this learner's rows of a minibatch, and the one after its last.

        Numbers of rows differ by one at most. With fewer rows than learners, some have none.
        """
        each, more = divmod(num_rows, self.size)
        begin = self.rank * each + min(self.rank, more)
        return begin, begin + each + (self.rank < more)

    def part(self, rows: Tensor) -> Tensor:
        """This learner's part of the rows of a minibatch."""
        begin, end = self.bounds(len(rows))
        return rows[begin:end]

    def sum(self, tensor: Tensor) -> Tensor:
        """Adds up what all learners give, in place: the same on all of them, bit for bit.

        Raises:
            LearnerLostError: if one of them is gone.
        """
        if self._group is not None:
            self._wait(self._group.allreduce([tensor]))
        return tensor

    def from_first(self, value: float) -> float:
        """The number that the first learner gives; those of the others are ignored.

        Raises:
            LearnerLostError: if one of them is gone.
        """
        if self._group is None:
            return value
        shared = torch.tensor([value], dtype=torch.float64, device=self._device)
        self._wait(self._group.broadcast([shared]))
        return float(shared)

    def _wait(self, work: Any) -> None:
        """On a GPU it is the GPU that waits, and `give_up` ends that."""
        try:
            if not self._on_gpu:
                while not work.is_completed():
                    with suppress(RuntimeError):  # a time-out, or what is raised again below
                        work.wait(_LOOK)
                    if self._is_lost:
                        _keep_forever(self._group)
                        raise LearnerLostError("a learner is lost")
            work.wait()
        except RuntimeError as error:
            raise LearnerLostError(
                f"the connection between the learners broke ({str(error).splitlines()[0]:.200}); "
                f"continue from the last checkpoint with --resume"
            ) from error

    @property
    def _on_gpu(self) -> bool:
        return self._device is not None and self._device.type == "cuda"

    def give_up(self) -> None:
        """Lets whoever waits for another learner go on, from any thread; an error says why."""
        self._is_lost = True
        if self._on_gpu:
            self._group.abort()


ALONE = Peers()


def open_store(host: str) -> tuple[Any, int]:
    """A store where learners find each other, and its port; it lives as long as it is referred to.

    Args:
        host: address to listen at; by itself, torch's store listens at all of them.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        timeout=_CONNECT_TIMEOUT,
    )
    return store, port


def find_store(host: str, port: int) -> Any:
    """The store that another process has opened."""
    return dist.TCPStore(host, port, is_master=False, timeout=_CONNECT_TIMEOUT)


def connect(
    store: Any, rank: int, size: int, host: str, device: torch.device
) -> Mapping[str, Peers]:
    """Connects a learner with the others, for each net; waits until they all call this.

    The groups are not torch's global ones, since a process may hold several trainings.

    Args:
        store: where they find each other.
        rank: of this one.
        size: how many there are.
        host: its own address, at which the others reach it.
        device: of the nets.

    Raises:
        LearnerLostError: if one of them does not come or cannot be reached.
    """
    try:
        groups = {
            name: _group(dist.PrefixStore(name, store), rank, size, host, device) for name in NETS
        }
    except RuntimeError as error:
        raise LearnerLostError(
            f"the learners do not reach each other from {host} ({str(error).splitlines()[0]:.200})"
        ) from error
    return {name: Peers(group, rank, size, device) for name, group in groups.items()}


def _group(store: Any, rank: int, size: int, host: str, device: torch.device) -> Any:
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _TIMEOUT
        return dist.ProcessGroupNCCL(store, rank, size, options)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = _CONNECT_TIMEOUT
    group = dist.ProcessGroupGloo(store, rank, size, options)
    group.set_timeout(_TIMEOUT)
    return group


def _keep_forever(group: Any) -> None:
    """Its destructor would wait for an operation that a lost machine never ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
