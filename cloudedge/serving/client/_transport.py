"""The transport interface: one protocol to one server, and the tables that map its refusals to errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cloudedge.errors import (
    CloudEdgeError,
    DeadlineExceeded,
    InputError,
    NotFound,
    Overloaded,
    Rejected,
    Unavailable,
)
from cloudedge.serving.formats import (
    GENERAL,
    GENERAL_ANSWER,
    BodyLimits,
    Malformed,
    TooLarge,
    WireTensor,
    from_message,
    message_cost,
    parse_array,
)

__all__ = [
    "ANSWER_LIMITS",
    "MAX_ANSWER",
    "Question",
    "Reply",
    "Transport",
    "answer_facts",
    "arrays_of_texts",
    "error_of_err_no",
    "error_of_status",
    "general_arrays",
    "general_request",
    "select_outputs",
]

Array = NDArray[Any]

MAX_ANSWER = 256 << 20
ANSWER_LIMITS = BodyLimits(max_inflated_bytes=MAX_ANSWER, max_inflate_ratio=MAX_ANSWER, max_parsed_bytes=4 * MAX_ANSWER)
"""What an answer may become: a server's numbers take a few times their bytes; millions of empty tensors take more."""


@dataclass(frozen=True)
class Question:
    """One attempt at a prediction."""

    inputs: Mapping[str, Array]
    outputs: Sequence[str]
    timeout_s: float
    """The rest of the caller's time-out."""
    tag: str | None = None
    log_id: int = 0


@dataclass(frozen=True)
class Reply:
    """The answer of a server."""

    outputs: dict[str, Array]
    pin: str = ""
    tag: str = ""
    defaulted: float = 0.0
    """Share of looked-up rows that were declared defaults."""


def answer_facts(headers: Mapping[str, str]) -> tuple[str, str, float]:
    """Read pin, tag and share of declared defaults from an answer's headers, or gRPC's trailing metadata."""
    try:
        defaulted = float(headers.get("x-cloudedge-defaulted", 0.0))
    except ValueError:
        defaulted = 0.0
    return headers.get("x-cloudedge-pin", ""), headers.get("x-cloudedge-tag", ""), defaulted


class Transport(Protocol):
    """One protocol to one server; safe to use from several threads."""

    def ask(self, question: Question) -> Reply:
        """Ask once.

        Raises:
            Unavailable: The server is unreachable or could not answer; another try may succeed.
            DeadlineExceeded: The time-out passed.
            InputError, NotFound, Rejected: The server refused.
        """
        ...

    def forget(self) -> None:
        """Close the idle connections: the server was silent, so they may lead nowhere. The next call opens another."""
        ...

    def close(self) -> None:
        """Close its connections."""
        ...


STATUSES: dict[int, type[CloudEdgeError]] = {
    400: InputError,
    401: Rejected,
    403: Rejected,
    404: NotFound,
    405: NotFound,
    413: InputError,
    429: Overloaded,
    504: DeadlineExceeded,
}


def error_of_status(status: int, where: str, text: str) -> CloudEdgeError:
    """Turn an HTTP status into an error."""
    kind = STATUSES.get(status, Unavailable if status >= 500 else Rejected)  # noqa: PLR2004 - the server's fault
    return kind(f"{where} answered {status}: {text[:500] or 'nothing more'}", status=status)


ERR_NOS: dict[int, type[CloudEdgeError]] = {
    3001: Unavailable,
    3002: NotFound,
    5000: InputError,
    6000: Overloaded,
    7000: InputError,
    8000: InputError,
    9000: Unavailable,
}


def error_of_err_no(err_no: int, where: str, text: str) -> CloudEdgeError:
    """Turn the Pipeline service's err_no into an error; retrying does not help product codes and failed hooks."""
    return ERR_NOS.get(err_no, Rejected)(f"{where} answered err_no {err_no}: {text[:500]}", err_no=err_no)


def arrays_of_texts(names: Sequence[str], texts: Sequence[str]) -> dict[str, Array]:
    """Parse the Pipeline service's values; a value that is no array stays text, in an array of no dimensions."""
    found: dict[str, Array] = {}
    for name, text in zip(names, texts, strict=False):
        try:
            found[name] = parse_array(name, text)
        except Malformed:
            found[name] = np.array(text)
    return found


def select_outputs(outputs: dict[str, Array], question: Question) -> dict[str, Array]:
    """Keep the requested outputs; the Pipeline service always answers all."""
    missing = [name for name in question.outputs if name not in outputs]
    if missing:
        raise InputError(f"the service has no output {missing[0]!r}; it has {', '.join(sorted(outputs))}")
    return {name: outputs[name] for name in question.outputs or outputs}


def general_request(question: Question) -> bytes:
    """Write a `Request` of the GeneralModelService."""
    from cloudedge.serving.formats import GeneralRequest  # noqa: PLC0415
    from cloudedge.serving.protocols import add_tensor  # noqa: PLC0415 - protobuf is not needed for plain JSON

    message = GeneralRequest(fetch_var_names=question.outputs, log_id=question.log_id)
    for name, array in question.inputs.items():
        add_tensor(message.tensor, name, name, array)
    return bytes(message.SerializeToString())


def general_arrays(where: str, raw: bytes) -> dict[str, Array]:
    """Read a `Response` of the GeneralModelService."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    from cloudedge.serving.formats import GeneralResponse  # noqa: PLC0415

    try:
        message_cost(raw, ANSWER_LIMITS.max_parsed_bytes, fields=GENERAL_ANSWER)
        response = GeneralResponse.FromString(raw)
        sent = [from_message(tensor, GENERAL) for output in response.outputs for tensor in output.tensor]
        if not response.err_no:
            return {_alias(tensor): tensor.array() for tensor in sent}
    except (DecodeError, Malformed, TooLarge) as error:
        raise Unavailable(f"{where} answered something that is no Response: {error}") from error
    raise Rejected(f"{where} answered err_no {response.err_no}: {response.err_msg[:500]}", err_no=response.err_no)


def _alias(tensor: WireTensor) -> str:
    return tensor.alias or tensor.name
