"""The benchmarks of serving measure answers, and see what they are there to see."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time

import pytest

from tests import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import _soak_clients as soak  # found through the line above
import serving_soak
import serving_wire


@pytest.mark.rules
@pytest.mark.parametrize("rows", [1, 3])
def test_every_codec_answers_what_its_reader_reads(rows):
    for way in serving_wire.ways(rows).values():
        assert asyncio.run(serving_wire.measure(way, rows, 2)) >= 0


@pytest.mark.rules
def test_a_codec_that_answers_with_errors_is_not_measured(monkeypatch):
    monkeypatch.delattr(serving_wire.Constant, "hold")
    for way in serving_wire.ways(1).values():
        with pytest.raises((AssertionError, LookupError)):
            asyncio.run(serving_wire.measure(way, 1, 2))


PINS = {"sha256:a": 1, "sha256:b": 2}


def reply(pin: str, y: list[float]) -> tuple[bytes, dict]:
    return f"HTTP/1.1 200 OK\r\nX-Cloudedge-Pin: {pin}\r\n\r\n".encode(), {"pin": pin, "outputs": {"y": [y]}}


@pytest.mark.rules
def test_an_answer_of_two_versions_shows():
    assert soak.is_whole(*reply("sha256:a", soak.answer_of(1, 5)), PINS, 5)
    dense, row = soak.answer_of(1, 5)[:2], soak.row_of(2, 5)
    for mixed in (dense + row, soak.answer_of(2, 5), soak.answer_of(1, 6)):
        assert not soak.is_whole(*reply("sha256:a", mixed), PINS, 5)
    assert not soak.is_whole(reply("sha256:b", [])[0], reply("sha256:a", soak.answer_of(1, 5))[1], PINS, 5)
    assert not soak.is_whole(*reply("sha256:c", soak.answer_of(1, 5)), PINS, 5)


@pytest.mark.parts
def test_a_server_that_stands_still_is_seen_by_every_request_of_that_time():
    rate, stands_still_s, enough = 200.0, 0.4, 100
    answered = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answered
        while head := await reader.read(1 << 16):
            key = json.loads(head.partition(b"\r\n\r\n")[2])["inputs"]["id"][0][0]
            if not answered:
                await asyncio.sleep(stands_still_s)
            answered += 1
            body = json.dumps(reply("sha256:a", soak.answer_of(1, key))[1]).encode()
            head = f"HTTP/1.1 200 OK\r\nX-Cloudedge-Pin: sha256:a\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
        writer.close()

    async def main() -> soak.Seen:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await soak.drive(port, PINS, connections=1, rate=rate, is_over=lambda: answered >= enough)

    seen = asyncio.run(main())
    assert not seen.mixed
    assert not seen.lost
    late = [each for each in seen.answers if each.done - each.due >= stands_still_s / 2]
    assert len(late) >= rate * stands_still_s / 2  # all that were due in the first half of it, at one connection
    assert seen.sent_rps * seen.seconds <= len(seen.answers)


@pytest.mark.rules
def test_what_never_reached_the_server_is_no_load():
    now = time.monotonic()
    seen = soak.Seen(begin=now, end=now + 1, unsent=200)
    seen.answers = [soak.Answered(now, now, now + 0.5, 200)] * 100
    assert seen.sent_rps == 100
    facts = dict.fromkeys(("mixed", "lost", "others_share", "ended_after_s"), 0) | {
        "statuses": {"200": 100}, "statuses_after": {"200": 5}, "memory_growth": 1.0, "goodput_share": 1.0,
        "first_second_after_share": 1.0,
    }  # fmt: skip
    for times, missed in ((1.0, ["overload: sent, times capacity"]), (3.0, [])):
        found = serving_soak.bars({"overload": facts | {"sent_times_capacity": times}})
        assert serving_soak.judge(found, lambda _: None)["missed"] == missed


@pytest.mark.parts
def test_the_limit_is_set_up_as_our_runtime_is(tmp_path):
    """Whose flags decide what a call of Paddle costs: where ours are not set, the server beats its limit."""
    flags = "import paddle; print(paddle.get_flags('FLAGS_eager_delete_tensor_gb'))"
    model = serving_soak.stock_lab.make_models(tmp_path / "models") / "tiny"
    load = f"from pathlib import Path; from tests.serving.stock import models; models.load(Path({str(model)!r}))"
    told = [
        subprocess.run(
            [sys.executable, "-c", f"{first}; {flags}"], cwd=ROOT,
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()[-1]
        for first in (load, "from cloudedge.serving.model import _predictor; _predictor.engine()")
    ]  # fmt: skip
    assert told[0] == told[1]
