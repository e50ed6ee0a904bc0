"""Commands in pods: run one and collect its output and exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import websocket

from cloudedge.errors import DeadlineExceeded, InputError, Unavailable
from cloudedge.kube.api import BROKEN, Session

__all__ = ["Ran", "run_in_pod"]

_OUTPUT_LIMIT = 64 << 20
_STDOUT, _STDERR, _RESULT = 1, 2, 3


@dataclass(frozen=True)
class Ran:
    """The exit code and output of a command in a pod."""

    code: int
    stdout: bytes
    stderr: bytes


def run_in_pod(
    session: Session, path: str, command: Sequence[str], *, pod: str, container: str, timeout_s: float
) -> Ran:
    """Run a command and collect its output.

    Raises:
        DeadlineExceeded: the command has not ended in time.
        InputError: it writes more than the limit.
        Unavailable: the connection broke; the command may or may not have finished.
    """
    what = f"running {command[0]} in pod {pod}"
    end = session.clock.monotonic() + timeout_s
    query = {"command": list(command), "stdout": "true", "stderr": "true"}
    channels = {_STDOUT: bytearray(), _STDERR: bytearray(), _RESULT: bytearray()}
    connection = session.websocket(path, what=what, query=query | ({"container": container} if container else {}))
    try:
        while True:
            connection.settimeout(max(0.01, end - session.clock.monotonic()))
            operation, data = connection.recv_data()
            if operation == websocket.ABNF.OPCODE_CLOSE:
                break
            if data and data[0] in channels:
                channels[data[0]] += data[1:]
            if sum(map(len, channels.values())) > _OUTPUT_LIMIT:
                raise InputError(f"{what}: the output is over the limit of {_OUTPUT_LIMIT} bytes")
    except (websocket.WebSocketTimeoutException, TimeoutError) as error:
        raise DeadlineExceeded(
            f"{what}: still running after {timeout_s:.0f} s", hint="It may go on in the pod."
        ) from error
    except BROKEN as error:
        if not channels[_RESULT]:
            raise Unavailable(f"{what}: the connection broke: {type(error).__name__}") from error
    finally:
        connection.close(timeout=1)
        connection.shutdown()  # even if the closing handshake failed
    return Ran(_code(bytes(channels[_RESULT]), what), bytes(channels[_STDOUT]), bytes(channels[_STDERR]))


def _code(result: bytes, what: str) -> int:
    try:
        found = json.loads(result)
        if found["status"] == "Success":
            return 0
        causes = {cause["reason"]: cause["message"] for cause in found["details"]["causes"]}
        return int(causes["ExitCode"])
    except (ValueError, KeyError, TypeError):
        raise Unavailable(f"{what}: {result[:300].decode(errors='replace') or 'no exit status arrived'}") from None
