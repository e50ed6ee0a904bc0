"""The rule by which a supervised process counts as hung."""

from __future__ import annotations

import os

import pytest

from cloudedge.supervisor._health import BUSY_S, HUNG_S, LEAST_PROBES, HealthRecord, cpu_seconds

pytestmark = pytest.mark.rules


def silent(*, since=100.0, cpu_s=5.0, probes=LEAST_PROBES):
    """Return the record of a process that answered once, and then not."""
    record = HealthRecord()
    record.answered(since, cpu_s)
    record.unanswered = probes
    return record


def test_silent_and_idle_is_hung():
    record = silent()
    assert not record.is_hung(100 + HUNG_S - 0.1, 5.0)
    assert record.is_hung(100 + HUNG_S, 5.0)
    assert record.silent_s(100 + HUNG_S) == HUNG_S


def test_one_that_computes_has_longer():
    record = silent()
    assert not record.is_hung(100 + HUNG_S, 5.0 + HUNG_S / 2)
    assert not record.is_hung(100 + BUSY_S - 1, 5.0 + BUSY_S / 2)
    assert record.is_hung(100 + BUSY_S, 5.0 + BUSY_S)


def test_one_that_never_answered_is_starting():
    record = HealthRecord(unanswered=1000)
    assert not record.is_hung(1e9, 0.0)
    assert record.silent_s(1e9) == 0


def test_a_supervisor_that_was_stopped_kills_nothing():
    assert not silent(probes=LEAST_PROBES - 1).is_hung(1e9, 5.0)


def test_an_answer_begins_anew():
    record = silent()
    record.answered(200.0, 6.0)
    record.unanswered = LEAST_PROBES
    assert not record.is_hung(200 + HUNG_S - 1, 6.0)


def test_under_a_debugger_or_gone_is_not_idle():
    assert not silent().is_hung(100 + HUNG_S, float("inf"))
    assert cpu_seconds(2**22 + 1) == float("inf")
    assert 0 < cpu_seconds(os.getpid()) < float("inf")
