"""Port-forwarding: a port of this machine that leads to a pod's port.

Each local connection becomes one through the API server, carried by its own thread. Neither side can block the other
for ever: data for a side that does not read is buffered up to a limit, then the sender is no longer read.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
from types import TracebackType
from typing import Any

import websocket

from cloudedge.errors import CloudEdgeError
from cloudedge.kube.api import BROKEN, Session

__all__ = ["Forward"]

_CHUNK = 16 * 1024
_KEPT = 1 << 20
_POLL_S = 0.5
_STALL_S = 60.0
_DATA, _ERROR = 0, 1


class Forward:
    """A local port that leads to a pod's port.

    Args:
        session: The server.
        path: The pod's port-forward address.
        port: The pod's port.
        what: The attempt in words, for errors.
    """

    def __init__(self, session: Session, path: str, port: int, *, what: str) -> None:
        self._session, self._path, self._port, self._what = session, path, port, what
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> int:
        """Begin to listen; a connection that cannot be forwarded is closed."""
        self._listener.settimeout(_POLL_S)
        self._start(self._accept)
        return int(self._listener.getsockname()[1])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _start(self, target: Any, *arguments: Any) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=target, args=arguments, name=self._what, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._ending.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return  # closed
            self._start(self._carry, client)

    def _carry(self, client: socket.socket) -> None:
        with client, contextlib.suppress(CloudEdgeError, *BROKEN):
            far = self._session.websocket(self._path, what=self._what, query={"ports": str(self._port)})
            try:
                _Pair(client, far).run(self._ending)
            finally:
                far.close(timeout=1)
                far.shutdown()  # even if the closing handshake failed


class _Pair:
    """A local connection and its counterpart at the pod; ends when either does."""

    def __init__(self, client: socket.socket, far: Any) -> None:
        self._client, self._far = client, far
        self._to_pod = bytearray()
        self._to_client = bytearray()
        self._greeted: set[int] = set()
        client.setblocking(False)
        far.settimeout(_STALL_S)

    def run(self, ending: threading.Event) -> None:
        with selectors.DefaultSelector() as ready:
            while not ending.is_set():
                self._arm(ready)
                pending = self._has_pending()
                events = {key.fileobj: mask for key, mask in ready.select(0 if pending else _POLL_S)}
                if (pending or self._is(events, self._far.sock, selectors.EVENT_READ)) and not self._from_pod():
                    self._flush()
                    return
                if self._is(events, self._far.sock, selectors.EVENT_WRITE) and self._to_pod:
                    sent = self._far.sock.send(self._to_pod[:_CHUNK])
                    del self._to_pod[:sent]
                if self._is(events, self._client, selectors.EVENT_WRITE) and self._to_client:
                    del self._to_client[: self._client.send(self._to_client)]
                if self._is(events, self._client, selectors.EVENT_READ) and not self._from_client():
                    return

    @staticmethod
    def _is(events: dict[Any, int], side: Any, mask: int) -> bool:
        return bool(events.get(side, 0) & mask)

    def _arm(self, ready: selectors.BaseSelector) -> None:
        """Read a side only while there is room for its data; wait to write only with data to send."""
        for side, outgoing, incoming in (
            (self._client, self._to_client, self._to_pod),
            (self._far.sock, self._to_pod, self._to_client),
        ):
            mask = (selectors.EVENT_READ if len(incoming) < _KEPT else 0) | (selectors.EVENT_WRITE if outgoing else 0)
            known = ready.get_map().get(side)
            if known is None and mask:
                ready.register(side, mask)
            elif known is not None and not mask:
                ready.unregister(side)
            elif known is not None and known.events != mask:
                ready.modify(side, mask)

    def _has_pending(self) -> bool:
        """Return whether there is room for data that TLS has decrypted already, which no selector reports."""
        is_tls = isinstance(self._far.sock, ssl.SSLSocket)
        return is_tls and len(self._to_client) < _KEPT and self._far.sock.pending() > 0

    def _from_client(self) -> bool:
        data = self._client.recv(_CHUNK)
        if data:
            self._to_pod += websocket.ABNF.create_frame(bytes([_DATA]) + data, websocket.ABNF.OPCODE_BINARY).format()
        return bool(data)

    def _from_pod(self) -> bool:
        operation, frame = self._far.recv_data_frame(True)
        if operation == websocket.ABNF.OPCODE_CLOSE:
            return False
        if operation not in (websocket.ABNF.OPCODE_BINARY, websocket.ABNF.OPCODE_TEXT) or not frame.data:
            return True
        channel, data = frame.data[0], frame.data[1:]
        if channel not in self._greeted:
            self._greeted.add(channel)  # the first frame of each channel repeats the port
        elif channel == _DATA:
            self._to_client += data
        elif channel == _ERROR:
            return False  # nothing listens on that port, or the pod is gone
        return True

    def _flush(self) -> None:
        self._client.settimeout(_STALL_S)
        self._client.sendall(self._to_client)
