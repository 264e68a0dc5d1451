"""TCP ports of this machine: whether one can be bound to, or any free one."""

from __future__ import annotations

import socket

from rl_service.errors import SettingsError

LOOPBACK, ALL_INTERFACES = "127.0.0.1", "0.0.0.0"


def usable_port(flag: str, port: int, host: str) -> int:
    """The port, or a free one for 0.

    Args:
        flag: that the port was given with.
        port: 0 takes a free one.
        host: address that will be bound to.

    Raises:
        SettingsError: if somebody has the port, or the host is none of this machine's.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise SettingsError(
            f"{flag} {port} cannot be used: {(error.strerror or str(error)).lower()}; give another "
            f"port, or 0 for any free one"
        ) from error
