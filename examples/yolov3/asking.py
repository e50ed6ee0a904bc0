"""Clients: one request as the first users of Paddle Serving send it, and one client per node that asks all the time."""

from __future__ import annotations

import ast
import base64
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import requests

_EVERY_S = 0.1
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Answer:
    """What came back."""

    boxes: list[dict[str, Any]]
    pin: str
    """The version that answered."""


def ask(url: str, picture: bytes, *, session: requests.Session | None = None) -> Answer:
    """Send a picture.

    Raises:
        requests.RequestException: nobody answered.
        ValueError: the answer is an error.
    """
    body = {"key": ["image"], "value": [base64.b64encode(picture).decode()]}
    call = (session or requests).post(f"{url}/yolov3/prediction", json=body, timeout=_TIMEOUT_S)
    call.raise_for_status()
    answer = call.json()
    if answer["err_no"] or answer["key"] != ["bbox_result"]:
        raise ValueError(f"err_no {answer['err_no']}: {answer['err_msg']}")
    return Answer(ast.literal_eval(answer["value"][0]), call.headers.get("X-Cloudedge-Pin", ""))


class Visitors:
    """One client per node, asking until the block ends, and writing down who answered with which version."""

    def __init__(self, urls: Mapping[str, str], pictures: Sequence[bytes]) -> None:
        self._pictures = pictures
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._visit, args=pair, daemon=True) for pair in urls.items()]
        self.answered = dict.fromkeys(urls, 0)
        self.failed: dict[str, list[str]] = {name: [] for name in urls}
        self.spans: dict[str, list[dict[str, Any]]] = {name: [] for name in urls}
        """By node, from when to when it answered with which version."""

    def now(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self._began

    def __enter__(self) -> Visitors:  # noqa: PYI034 - typing.Self is not in 3.10
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _visit(self, name: str, url: str) -> None:
        count = 0
        with requests.Session() as session:
            session.trust_env = False
            while not self._stop.wait(_EVERY_S):
                try:
                    pin = ask(url, self._pictures[count % len(self._pictures)], session=session).pin
                    self.answered[name] += 1
                except (requests.RequestException, ValueError) as error:
                    pin = ""
                    self.failed[name].append(f"at {self.now():.1f} s: {error}")
                count += 1
                at, spans = round(self.now(), 3), self.spans[name]
                if spans:
                    spans[-1]["to"] = at
                if not spans or spans[-1]["pin"] != pin:
                    spans.append({"pin": pin, "from": at, "to": at})
