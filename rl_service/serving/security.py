"""Who may ask: tokens with names, from a file or the environment, changed without a restart."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from custom_models.text import one_line
from rl_service.common.errors import SettingsError

TOKENS_VARIABLE = "RL_SERVICE_TOKENS"
MIN_TOKEN_CHARACTERS = 16
_CHECK_INTERVAL_S = 1.0
_LINE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]{0,63})[ \t]*[:=][ \t]*(?P<token>[!-~]+)")
_FORM = "NAME: TOKEN, one a line"

_logger = logging.getLogger("rl_service.serving")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that binds there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, tokens: Tokens) -> None:
    """Raises SettingsError for a server that others can reach and anybody could use."""
    if is_loopback(host) or tokens.required:
        return
    raise SettingsError(
        f"--host {host} can be reached from other machines, so it needs tokens; give --token-file "
        f"with lines {_FORM.partition(',')[0]}, or {TOKENS_VARIABLE}, or bind to 127.0.0.1"
    )


def parse_tokens(text: str, source: str) -> dict[str, str]:
    """Tokens by name.

    Args:
        text: lines (or parts between commas) `NAME: TOKEN`; `#` begins a comment line.
        source: of the text, for messages.

    Raises:
        SettingsError: for a line of another form, a short token, or a name given twice.
    """
    tokens: dict[str, str] = {}
    for number, line in enumerate(re.split(r"[\n,]", text), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        if match is None:  # the line is not shown: it may hold a secret
            raise SettingsError(f"{source}, line {number} has another form than {_FORM}")
        name, token = match["name"], match["token"]
        if len(token) < MIN_TOKEN_CHARACTERS:
            raise SettingsError(
                f"{source}: token {name} is shorter than {MIN_TOKEN_CHARACTERS} characters and "
                f"could be guessed; make one with openssl rand -hex 32"
            )
        if name in tokens:
            raise SettingsError(f"{source}: token {name} is given twice; give each its own name")
        tokens[name] = token
    if not tokens:
        raise SettingsError(f"{source} holds no token; give {_FORM}")
    return tokens


class Tokens:
    """The tokens in force. A changed file is read within a second; a broken one changes nothing.

    Args:
        file: with one `NAME: TOKEN` a line; None: those of the environment, if any.
        environment: where `RL_SERVICE_TOKENS` may hold `NAME: TOKEN` with commas between them.

    Raises:
        SettingsError: if the file or the variable cannot be read.
    """

    def __init__(self, file: Path | None, environment: Mapping[str, str] = os.environ) -> None:
        self._file = file
        self._next_check = time.monotonic() + _CHECK_INTERVAL_S
        self._digests: dict[str, bytes] = {}
        if file is not None:
            self._digests = _read(file)
        elif environment.get(TOKENS_VARIABLE):
            self._digests = _digests(environment[TOKENS_VARIABLE], TOKENS_VARIABLE)

    @property
    def required(self) -> bool:
        """Whether a request needs one."""
        return bool(self._digests)

    def name_of(self, authorization: str) -> str | None:
        """Name of the token in an `Authorization` header; None if it is unknown.

        Every known token is compared, each in constant time, whichever fits.
        """
        self._read_again_if_changed()
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest = _digest(token.strip())
        found = None
        for name, known in self._digests.items():
            if hmac.compare_digest(digest, known):
                found = name
        return found

    def _read_again_if_changed(self) -> None:
        now = time.monotonic()
        if self._file is None or now < self._next_check:
            return
        self._next_check = now + _CHECK_INTERVAL_S
        try:
            digests = _read(self._file)
            if digests != self._digests:
                self._digests = digests
                _logger.info("tokens_changed", extra={"fields": {"names": sorted(digests)}})
        except SettingsError as error:
            _logger.error("tokens_unchanged", extra={"fields": {"reason": str(error)}})


def _read(file: Path) -> dict[str, bytes]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"token file {file} cannot be read: {one_line(error)}; give {_FORM}"
        ) from error
    return _digests(text, f"token file {file}")


def _digests(text: str, source: str) -> dict[str, bytes]:
    return {name: _digest(token) for name, token in parse_tokens(text, source).items()}


def _digest(token: str) -> bytes:
    """Of one length, so that a comparison does not reveal the length of a token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
