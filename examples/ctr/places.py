"""Which version every place answers with, over time."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from load import Load

from cloudedge import Target

_EVERY_S = 0.2


class Watcher:
    """Asks every place what it answers with, again and again, until the block ends."""

    def __init__(self, target: Target, load: Load) -> None:
        self._target = target
        self._load = load
        self._spans: dict[str, list[dict[str, Any]]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def spans(self) -> Mapping[str, list[dict[str, Any]]]:
        """Return, by place, from when to when it answered with which version; an empty pin: it did not."""
        return self._spans

    def __enter__(self) -> Watcher:  # noqa: PYI034 - typing.Self is not in 3.10
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            at = self._load.now()
            for place in self._target.status().places:
                pin = max(place.answers, key=lambda pin: place.answers[pin], default="")
                spans = self._spans.setdefault(place.name, [])
                if spans and spans[-1]["pin"] == pin:
                    spans[-1]["to"] = at
                else:
                    if spans:
                        spans[-1]["to"] = at
                    spans.append({"pin": pin, "from": at, "to": at})
