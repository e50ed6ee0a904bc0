"""One version for one request, from its first array to its last; and the shadow that is asked the same."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from cloudedge.bundle.contents import largest_difference
from cloudedge.errors import CloudEdgeError
from cloudedge.serving.engine import Answer, Call
from cloudedge.serving.formats import plan_of
from cloudedge.serving.model import Item, Lane, LaneClosed

if TYPE_CHECKING:
    from cloudedge.serving.runtime._runtime import Runtime

__all__ = ["HeldVersion"]


class HeldVersion:
    """One version for one request; see `Held`."""

    __slots__ = ("_lane", "_runtime", "_tag", "signature")

    def __init__(self, runtime: Runtime, lane: Lane, tag: str) -> None:
        self._runtime = runtime
        self._lane = lane
        self._tag = tag
        self.signature = lane.version.signature

    async def predict(self, call: Call) -> Answer:
        """Answer one call; its pin and its tag are settled."""
        loop = asyncio.get_running_loop()
        item = self.submit(call, loop)
        answer: Answer = await item.future  # type: ignore[misc]
        if self._runtime.routing.shadow is not None:
            _mirror(self._runtime, call, answer, self._lane, loop)
        return answer

    def submit(self, call: Call, loop: asyncio.AbstractEventLoop | None) -> Item:
        """Check a call and queue it; its future has the answer."""
        version = self._lane.version
        try:
            arrays, rows, key = version.feeds.check(call.feed)
            names = version.fetch(call.fetch)
        except CloudEdgeError:
            version.metrics.refused()
            raise
        item = Item(arrays, rows, key, names, tag=self._tag, deadline=call.deadline, loop=loop)
        self._lane.put(item, loop if loop is self._runtime.home else None)
        return item

    def __enter__(self) -> HeldVersion:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self._lane.release()


def _mirror(runtime: Runtime, call: Call, answer: Answer, lane: Lane, loop: asyncio.AbstractEventLoop) -> None:
    """Ask the shadow, if there is one, the same, if it has nothing else to do; compare once it has answered."""
    shadow = runtime.routing.shadow
    listener = runtime.lanes.get(shadow.pin) if shadow is not None else None
    if shadow is None or listener is None or listener is lane or random.random() >= shadow.share:  # noqa: S311
        return
    metrics = listener.version.metrics
    # Short rows were filled up with the padding id of the version that answered.
    if listener.pending or plan_of(listener.version.signature).padding != plan_of(lane.version.signature).padding:
        metrics.shadowed(differed=None)
        return
    try:
        arrays, rows, key = listener.version.feeds.check(call.feed)
        item = Item(arrays, rows, key, listener.version.fetch(()), loop=loop)
        item.future.add_done_callback(lambda done: metrics.shadowed(differed=_differs(done, answer, shadow.tolerance)))
        listener.put(item)
    except (CloudEdgeError, LaneClosed):
        metrics.shadowed(differed=None)


def _differs(done: Any, answer: Answer, tolerance: float) -> bool:
    if done.cancelled() or done.exception() is not None:
        return True
    theirs = done.result().outputs
    for name, ours in answer.outputs.items():
        other = theirs.get(name)
        if other is None or other.shape != ours.shape:
            return True
        if not largest_difference(other, ours) <= tolerance:
            return True
    return False
