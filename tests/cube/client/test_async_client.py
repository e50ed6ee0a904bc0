"""The asyncio face."""

from __future__ import annotations

import asyncio
import json

import pytest

from cloudedge.cube.client._async_client import AsyncClient
from cloudedge.cube.client._client import ClientConfig
from cloudedge.cube.client._errors import ShardUnavailable, UnknownVersion
from tests.cube.fake_server import FakeServer

pytestmark = pytest.mark.parts


def test_many_calls_at_once(start):
    servers = [start({key: (float(key),) for key in range(100) if key % 2 == number}) for number in range(2)]

    async def main() -> None:
        async with AsyncClient(ClientConfig([[one.address] for one in servers], timeout_ms=5000)) as client:
            results = await asyncio.gather(*(client.seek([i, 99 - i], pin="100") for i in range(50)))
            assert [r.values[:, 0].tolist() for r in results] == [[i, 99 - i] for i in range(50)]
            with pytest.raises(UnknownVersion):
                await client.seek([1], pin="99")

    asyncio.run(main())


def test_from_cube_conf_and_within_the_callers_time(start, tmp_path):
    silent = FakeServer(lambda call: None)

    def conf(address: str) -> str:
        table = {
            "dict_name": "emb",
            "shard": 1,
            "dup": 1,
            "timeout": 60_000,
            "retry": 0,
            "backup_request": 0,
            "type": "ipport_list",
            "load_balancer": "rr",
            "nodes": [{"ipport_list": f"list://{address}"}],
        }
        (tmp_path / "cube.conf").write_text(json.dumps([table]))
        return str(tmp_path / "cube.conf")

    async def main() -> None:
        async with AsyncClient.from_conf(conf(start({1: (1.0,)}).address), "emb", follow=True) as client:
            assert (await client.seek([1], timeout_s=60)).found.all()
        async with AsyncClient.from_conf(conf(silent.address), "emb") as client:
            with pytest.raises(ShardUnavailable):
                await client.seek([1], timeout_s=0.05)  # the test would take a minute otherwise

    try:
        asyncio.run(asyncio.wait_for(main(), 50))
    finally:
        silent.close()


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
