"""Literals are read by one thread at a time: CPython up to 3.11.7 may raise SystemError if two threads do so."""

from __future__ import annotations

import ast
import threading

import numpy as np
import pytest

from cloudedge.io import map_in_threads, parse_literal, read_npz

pytestmark = pytest.mark.rules


def test_no_two_threads_read_at_once(tmp_path, monkeypatch):
    np.savez(tmp_path / "rows.npz", keys=np.arange(3), values=np.ones((3, 2), np.float32))
    real, inside, most = ast.literal_eval, threading.Semaphore(1), []

    def watched(text):
        most.append(inside.acquire(blocking=False))
        try:
            return real(text)
        finally:
            inside.release()

    monkeypatch.setattr(ast, "literal_eval", watched)

    def read(number: int) -> None:
        for _ in range(20):
            if number % 2:
                assert parse_literal("[1, (2, 3)]") == [1, (2, 3)]
            else:
                assert read_npz(tmp_path / "rows.npz")["values"].shape == (3, 2)

    map_in_threads(read, list(range(8)), 8)
    assert len(most) >= 80
    assert all(most)
