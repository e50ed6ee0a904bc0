"""The asyncio face."""

from __future__ import annotations

import asyncio

import pytest
from net_fake import FakeServer

from cloudedge.cube._aio import AsyncClient
from cloudedge.cube._client import ClientConfig
from cloudedge.cube._errors import ShardUnavailable, UnknownVersion


def test_many_calls_at_once(start):
    servers = [start({key: (float(key),) for key in range(100) if key % 2 == number}) for number in range(2)]

    async def main() -> None:
        async with AsyncClient(ClientConfig([[one.address] for one in servers], timeout_ms=5000)) as client:
            results = await asyncio.gather(*(client.seek([i, 99 - i], pin="100") for i in range(50)))
            assert [r.values[:, 0].tolist() for r in results] == [[i, 99 - i] for i in range(50)]
            with pytest.raises(UnknownVersion):
                await client.seek([1], pin="99")

    asyncio.run(main())


def test_the_event_loop_goes_on_while_a_call_waits():
    silent = FakeServer(lambda call: None)

    async def main() -> int:
        async with AsyncClient(ClientConfig([[silent.address]], timeout_ms=300, retry=0)) as client:
            call = asyncio.ensure_future(client.seek([1]))
            turns = 0
            while not call.done():
                await asyncio.sleep(0.01)
                turns += 1
            assert isinstance(call.exception(), ShardUnavailable)
            return turns

    try:
        assert asyncio.run(main()) > 2
    finally:
        silent.close()
