"""What is known of the local cluster between two commands: one JSON file, and a token beside it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rl_service.cluster.nodes import by_number, is_running, node_leaders
from rl_service.common.errors import ClusterError
from rl_service.common.files import output_errors, write_atomic

HOME_VARIABLE = "RL_SERVICE_HOME"
_TOKEN_BYTES = 32
_HOME_REMEDY = f"fix its permissions, or point {HOME_VARIABLE} to another folder"


class Node(BaseModel):
    """One raylet with its helpers; the first node of a cluster is its head."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    pid: int
    """Of `ray start`, which leads a session of its own."""
    num_cpus: int
    """Logical CPUs that Ray may hand out, which need not be the machine's."""


class Autoscaling(BaseModel):
    """Worker nodes that Ray's autoscaler starts when work waits for CPUs, and ends when idle."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_workers: int
    """Worker nodes at a time, without the head."""
    num_cpus: int
    """Logical CPUs of each."""
    idle_timeout_s: float
    """How long a node has nothing to do before it ends."""


class LocalCluster(BaseModel):
    """A cluster that `rl-service cluster up` or `cluster autoscale` has started."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    """Its mark, in the environment of all its processes."""
    host: str = Field(default_factory=platform.node)
    """Name of the machine that it runs on; others may see the same home folder."""
    address: str
    """HOST:PORT for `ray.init`."""
    dashboard_url: str
    folder: str
    """Ray's sockets and logs; removed with the cluster."""
    started_at: str
    """ISO 8601, UTC."""
    nodes: list[Node]
    """Those that stay; `running_nodes` has all."""
    autoscaling: Autoscaling | None = None
    """None: no other nodes come."""

    @property
    def is_up(self) -> bool:
        """Whether the head runs; without it the rest is of no use."""
        return any(is_running(self.id, node.pid) for node in self.nodes[:1])

    def running_nodes(self) -> list[Node]:
        """The nodes that stay, dead or alive, and those that the autoscaler has started, alive."""
        if self.autoscaling is None:
            return self.nodes
        staying = {node.name for node in self.nodes}
        leaders = node_leaders(self.id)
        started = sorted(leaders.keys() - staying, key=by_number)
        num_cpus = self.autoscaling.num_cpus
        return [
            *self.nodes,
            *(Node(name=name, pid=leaders[name], num_cpus=num_cpus) for name in started),
        ]

    def check_is_visible(self) -> None:
        """Makes sure that a cluster whose processes are not here is dead.

        Raises:
            ClusterError: if another machine has started it, where they may well run.
        """
        if self.host != platform.node() and not self.is_up:
            raise ClusterError(
                f"the cluster in {state_path()} is that of {self.host}, and only {self.host} can "
                f"see whether it runs; go there, set {HOME_VARIABLE} to a folder of this "
                f"machine's own, or remove the file if {self.host} is gone"
            )


def home_folder() -> Path:
    """Where the state is kept: `$RL_SERVICE_HOME`, or `~/.rl-service`; it need not exist."""
    return Path(os.environ.get(HOME_VARIABLE) or "~/.rl-service").expanduser().absolute()


def state_path() -> Path:
    return home_folder() / "cluster.json"


def token_path() -> Path:
    """The cluster's token; only its owner may read it."""
    return home_folder() / "cluster.token"


def secrets_folder() -> Path:
    """Variables of jobs that nobody else may read, until the job has taken them."""
    return home_folder() / "secrets"


def load_cluster() -> LocalCluster | None:
    """The cluster in the state file, running or not; None without a file.

    Raises:
        ClusterError: if the file cannot be read.
    """
    path = state_path()
    try:
        return LocalCluster.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged"
        raise ClusterError(
            f"the state of the local cluster in {path} cannot be read: {reason}; fix or remove it"
        ) from error


def save_cluster(cluster: LocalCluster) -> None:
    """Replaces the state file.

    Raises:
        OutputError: if it cannot be written.
    """
    write_atomic(state_path(), json.dumps(cluster.model_dump(), indent=2) + "\n")


def forget_cluster() -> None:
    """Removes the state file, the token and what jobs have left of their secrets."""
    for path in (state_path(), token_path()):
        path.unlink(missing_ok=True)
    shutil.rmtree(secrets_folder(), ignore_errors=True)


def create_token() -> Path:
    """A new token in place of the old one.

    Raises:
        OutputError: if it cannot be written.
    """
    path = token_path()
    path.unlink(missing_ok=True)
    write_secret(path, secrets.token_hex(_TOKEN_BYTES))
    return path


def write_secret(path: Path, text: str) -> None:
    """Writes a new file that nobody else can read at any moment.

    Raises:
        OutputError: if it exists or cannot be written.
    """
    with output_errors(path, remedy=_HOME_REMEDY):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Lets one command at a time change the local cluster.

    Raises:
        ClusterError: if another one is changing it.
        OutputError: if the state's folder cannot be written.
    """
    path = home_folder() / "cluster.lock"
    with output_errors(path, remedy=_HOME_REMEDY):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = path.open("w")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ClusterError(
                "another rl-service is starting or ending the local cluster; wait until it is done"
            ) from error
        yield
