"""Refuses to serve without tokens where other machines can reach Serve's proxies.

An application does not choose where Serve binds: that is decided when Serve starts, for all
applications, and with HAProxy it is all interfaces unless told otherwise. So Serve is asked.
"""

from __future__ import annotations

import ray
from ray.serve.context import _get_global_client

from rl_service.errors import SettingsError
from rl_service.serving.security import TOKENS_VARIABLE, is_loopback


def check_exposure(*, with_tokens: bool) -> None:
    """Compares where Serve's proxies bind with who may ask.

    Args:
        with_tokens: whether each request needs a token.

    Raises:
        SettingsError: if others than the proxy's own machine could ask without one.
    """
    if with_tokens or not ray.is_initialized():
        return
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:  # nothing listens yet; each replica asks again
        return
    host = client.http_config.host
    if host is None or not is_loopback(host):
        raise SettingsError(
            f"Serve's http_options bind to host {host}, which other machines can reach, so the "
            f"application needs tokens; give token_file in its args, or {TOKENS_VARIABLE} on "
            f"every node, or start Serve with http_options host: 127.0.0.1"
        )
