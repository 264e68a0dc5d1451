"""A log that is followed over a broken connection is shown once, whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from rl_service.cluster import jobs as control
from rl_service.cluster.dashboard import Dashboard
from rl_service.cluster.jobs import Job, _tail, follow_log
from rl_service.common.errors import ClusterError

LOG = ["first\n", "second\nthird\n", "fourth\n"]


class Breaking:
    """A client whose connection breaks after some pieces; each new one begins with the first."""

    def __init__(self, error: Exception, num_pieces: list[int]) -> None:
        self.error, self.num_pieces = error, num_pieces

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        count = self.num_pieces.pop(0)
        # The last connection brings everything, in pieces of other sizes.
        for piece in LOG[:count] if self.num_pieces else "".join(LOG):
            yield piece
        if self.num_pieces:
            raise self.error


@pytest.mark.parametrize(
    "error",
    [RuntimeError("closed"), ConnectionResetError(), aiohttp.ServerDisconnectedError()],
    ids=lambda error: type(error).__name__,
)
def test_after_a_break_only_what_is_new_is_shown(error: Exception) -> None:
    client: Any = Breaking(error, [1, 2, 0, 3])
    written: list[str] = []
    shown, after = 0, []
    for _ in range(4):
        shown = asyncio.run(_tail(client, "job", shown, written.append))
        after.append("".join(written))
    assert after == [LOG[0], LOG[0] + LOG[1], LOG[0] + LOG[1], "".join(LOG)]
    assert shown == len("".join(LOG))


def test_a_job_whose_log_went_with_its_node_has_ended_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing: dict[str, Any] = dict.fromkeys(Job._fields)
    ended = Job(**nothing | {"id": "one", "status": "FAILED"})

    def answer(*_: object) -> None:
        raise ClusterError("the dashboard answered 500")

    monkeypatch.setattr(control, "ray_client", lambda _: Breaking(RuntimeError("closed"), [1, 3]))
    monkeypatch.setattr(control, "find_job", lambda *_: ended)
    monkeypatch.setattr(Dashboard, "get", answer)
    written: list[str] = []
    assert follow_log(Dashboard("http://head:8265"), ended, written.append) is ended
    note = "note: the end of the log cannot be read (the dashboard answered 500)\n"
    assert written == [LOG[0], note]
