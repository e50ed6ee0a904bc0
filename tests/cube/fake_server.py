"""A cube server that does what a test tells it: wrong, slow, of another version, or as upstream's, without pins."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from tests.cube import plain_wire as plain

Answer = Callable[["Call"], bytes | None]


class Call:
    """A request as it arrived."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        meta_size = int.from_bytes(data[8:12], "big")
        meta = dict(plain.fields(data[12 : 12 + meta_size]))
        self.correlation = meta[4]
        self.payload = data[12 + meta_size :]
        found = plain.fields(self.payload)
        self.keys = [value for no, value in found if no == 1]
        self.pin = next((value for no, value in found if no == 1001), None)
        self.wants_version = (2, 1) in found

    def rows(self, rows: dict[int, bytes], version: bytes) -> bytes:
        return plain.write_response(self.correlation, [rows.get(key) for key in self.keys], version)

    def error(self, code: int, text: bytes = b"no") -> bytes:
        return plain.frame(
            plain.text(2, plain.number(1, code) + plain.text(2, text))
            + plain.number(3, 0)
            + plain.number(4, self.correlation)
        )


class FakeServer:
    """Answers each request with what `answer` makes of it; None leaves it unanswered, b"" closes the connection."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls: list[Call] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while True:
                try:
                    head = stream.read(12)
                    if len(head) < 12:
                        return
                    call = Call(head + stream.read(int.from_bytes(head[4:8], "big")))
                    self.calls.append(call)
                    answer = self.answer(call)
                    if answer == b"":
                        return
                    if answer is not None:
                        connection.sendall(answer)
                except (OSError, ValueError):
                    return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


class Dead:
    """An address nobody listens on."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            self.address = f"127.0.0.1:{gone.getsockname()[1]}"


def upstream(rows: dict[int, bytes], version: bytes = b"100") -> Answer:
    """Answer as upstream's server does: no pins."""
    return lambda call: call.rows(rows, version)
