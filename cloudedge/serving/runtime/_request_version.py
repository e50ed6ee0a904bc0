"""The version that answers one request, from its first array to its last; and the mirroring to a shadow."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from cloudedge.bundle.contents import largest_difference
from cloudedge.errors import CloudEdgeError
from cloudedge.serving.engine import Answer, Call
from cloudedge.serving.formats import plan_of
from cloudedge.serving.model import QueuedRequest, VersionQueue, VersionUnloaded

if TYPE_CHECKING:
    from cloudedge.serving.runtime._runtime import Runtime

__all__ = ["LoadedRequestVersion"]


class LoadedRequestVersion:
    """A loaded version for one request; see `RequestVersion`."""

    __slots__ = ("_queue", "_runtime", "_tag", "signature")

    def __init__(self, runtime: Runtime, queue: VersionQueue, tag: str) -> None:
        self._runtime = runtime
        self._queue = queue
        self._tag = tag
        self.signature = queue.version.signature

    async def predict(self, call: Call) -> Answer:
        """Answer one call; `Runtime.hold` has applied its pin and its tag."""
        loop = asyncio.get_running_loop()
        item = self.submit(call, loop)
        answer: Answer = await item.future  # type: ignore[misc]
        if self._runtime.routing.shadow is not None:
            _mirror(self._runtime, call, answer, self._queue, loop)
        return answer

    def submit(self, call: Call, loop: asyncio.AbstractEventLoop | None) -> QueuedRequest:
        """Check a call and queue it; its future gets the answer."""
        version = self._queue.version
        try:
            arrays, rows, key = version.feeds.check(call.feed)
            names = version.fetch(call.fetch)
        except CloudEdgeError:
            version.metrics.count_failed()
            raise
        item = QueuedRequest(arrays, rows, key, names, tag=self._tag, deadline=call.deadline, loop=loop)
        self._queue.put(item, loop if loop is self._runtime.reader_loop else None)
        return item

    def __enter__(self) -> LoadedRequestVersion:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self._queue.release()


def _mirror(runtime: Runtime, call: Call, answer: Answer, queue: VersionQueue, loop: asyncio.AbstractEventLoop) -> None:
    """Send the call to the shadow, if there is one and it is idle; compare its answer when it comes."""
    shadow = runtime.routing.shadow
    shadow_queue = runtime.queues.get(shadow.pin) if shadow is not None else None
    if shadow is None or shadow_queue is None or shadow_queue is queue or random.random() >= shadow.share:  # noqa: S311
        return
    version = shadow_queue.version
    metrics, tolerance = version.metrics, shadow.tolerance
    # Short rows were filled up with the padding id of the version that answered.
    if shadow_queue.pending or plan_of(version.signature).padding != plan_of(queue.version.signature).padding:
        metrics.count_shadow(differed=None)
        return
    try:
        arrays, rows, key = version.feeds.check(call.feed)
        item = QueuedRequest(arrays, rows, key, version.fetch(()), loop=loop)
        item.future.add_done_callback(lambda done: metrics.count_shadow(differed=_differs(done, answer, tolerance)))
        shadow_queue.put(item)
    except (CloudEdgeError, VersionUnloaded):
        metrics.count_shadow(differed=None)


def _differs(done: Any, answer: Answer, tolerance: float) -> bool:
    if done.cancelled() or done.exception() is not None:
        return True
    shadow_outputs = done.result().outputs
    for name, output in answer.outputs.items():
        other = shadow_outputs.get(name)
        if other is None or other.shape != output.shape:
            return True
        if not largest_difference(other, output) <= tolerance:
            return True
    return False
