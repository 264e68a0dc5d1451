"""The process of one play: `python -m rl_service.page.player`.

Requests come on standard input and replies leave on what was standard output, one JSON text a
line. It ends when its input does, which is when the server has ended, however that happened.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rl_service.common.errors import RLServiceError
from rl_service.page.child import PLAY_FAILED, PlayError

if TYPE_CHECKING:  # imports torch, which takes seconds; input is watched before
    from rl_service.page.episode import PlayedEpisode

Requests = queue.SimpleQueue[dict[str, Any]]


def main() -> None:
    """Answers requests until the input ends or the play fails."""
    incoming, outgoing = _claim_pipes()
    requests: Requests = queue.SimpleQueue()
    threading.Thread(target=_read, args=(incoming, requests), daemon=True).start()
    _be_the_first_to_go()
    _answer_all(requests, outgoing)


def _claim_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Keeps the pipes from environments, which may print and read as they like."""
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return incoming, outgoing


def _read(incoming: IO[bytes], requests: Requests) -> None:
    try:
        for line in incoming:
            requests.put(json.loads(line))
    finally:
        os._exit(0)  # whatever the environment is doing


def _be_the_first_to_go() -> None:
    """If memory runs out, the kernel is to end a play rather than the server or a training."""
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def _answer_all(requests: Requests, outgoing: IO[bytes]) -> None:
    episode: PlayedEpisode | None = None
    while True:
        request = requests.get()
        number = request["number"]
        try:
            if episode is None:
                episode, answer = _begin(request)
            else:
                answer = _answer(episode, request)
            is_over = episode is None
            reply = {"number": number, "answer": answer}
            text = json.dumps(reply, allow_nan=False)
        except Exception as error:  # an environment may raise anything
            refusal = _refusal(error)
            is_over = episode is None or refusal.code == PLAY_FAILED
            described = {
                "code": refusal.code,
                "status": refusal.status,
                "message": refusal.message,
            }
            text = json.dumps({"number": number, "error": described})
        outgoing.write(text.encode() + b"\n")
        outgoing.flush()
        if is_over:
            os._exit(0)  # a broken environment may not close either


def _begin(request: dict[str, Any]) -> tuple[PlayedEpisode | None, dict[str, Any]]:
    """The first answer, and the episode that goes on; none goes on after a video."""
    from rl_service.page.episode import PlayedEpisode, record_episode
    from rl_service.runtime.process import prepare_process

    prepare_process(num_threads=1)
    policy = Path(request["bundle"]), request["base_model"], request["allow_modules"]
    try:
        if request["do"] == "replay":
            record_episode(*policy, Path(request["video"]))
            return None, {}
        episode = PlayedEpisode(*policy)
    except RLServiceError as error:
        raise PlayError("not_playable", 422, str(error)) from error
    return episode, episode.description | episode.reset(request["seed"])


def _answer(episode: PlayedEpisode, request: dict[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "step":
            return episode.step(request["action"])
        case "reset":
            return episode.reset(request["seed"])
        case "ask":
            return episode.ask(request["observation"])
    raise ValueError(f"no such request: {request['do']}")


def _refusal(error: Exception) -> PlayError:
    if isinstance(error, PlayError):
        return error
    if isinstance(error, RLServiceError):
        return PlayError.failed(str(error))
    from rl_service.rollout.env_failures import exception_text

    return PlayError.failed(exception_text(error))


if __name__ == "__main__":
    main()
