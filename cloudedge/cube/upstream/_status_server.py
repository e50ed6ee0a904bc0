"""The status API of cube-transfer over HTTP (up to v0.6.3), read-only, with a notification of new donefiles.

    GET  /dict/info              the configuration, every instance, the live version and earlier ones
    GET  /instance/status        every instance
    GET  /dict/deploy/history    the deliveries
    POST /notify                 read the donefiles now

Answers are upstream's: ``{"success": "0", "message": "query ok", "data": ...}`` with HTTP 200 in every case.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Any

from cloudedge.admin import AdminHttp, Reply
from cloudedge.cube.upstream._transfer import Transfer
from cloudedge.errors import CloudEdgeError

__all__ = ["StatusServer"]

_FINISHED, _ENABLED, _INIT = 90, 100, 10


class StatusServer(AdminHttp):
    """Answers until closed; HTTP 401 for a request without a required token.

    Args:
        transfer: The transfer that it reports on.
        host: The address to listen on; loopback by default.
        port: 0 takes any free one.
        token: What clients must send as ``Authorization: Bearer TOKEN``; required unless `host` is loopback.
    """

    needs_token_on_loopback = False  # as upstream's, whose users ask it with curl

    def __init__(self, transfer: Transfer, *, host: str = "127.0.0.1", port: int = 8099, token: str = "") -> None:
        super().__init__("transfer", host=host, port=port, token=token or None)
        self._transfer = transfer
        self.listen()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> Reply:  # noqa: ARG002 - nothing here takes a body
        """Answer a request."""
        routes: dict[str, Callable[[], Any]] = {
            "GET /dict/info": self._info,
            "GET /instance/status": self._instances,
            "GET /dict/deploy/history": self._history,
            "POST /notify": self._notify,
        }
        route = routes.get(f"{method} {path.rstrip('/')}")
        if route is None:
            return HTTPStatus.OK, _envelope("2", "wrong api", "")
        try:
            return HTTPStatus.OK, _envelope("0", "query ok", route())
        except CloudEdgeError as error:
            return HTTPStatus.OK, _envelope("255", error.message, "failed")

    def _notify(self) -> str:
        self._transfer.notify()
        return "ok"

    def _info(self) -> dict[str, Any]:
        conf = self._transfer.conf
        count = conf.shard_num * conf.copy_num
        return {
            "dict_name": conf.table,
            "dict_mode": conf.mode,
            "shard_num": conf.shard_num,
            "copy_num": conf.copy_num,
            "inst_num": count,
            "deploy_path": conf.deploy_path,
            "donefile_addr": conf.donefile_address,
            "output_addr": conf.output_address,
            "tmp_addr": conf.tmp_address,
            "download_mode": conf.download_mode,
            "wget_port": conf.wget_port,
            "download_inst": count,
            "reload_insts": count,
            "enable_insts": count,
            "instances": self._instances(),
            "wait_version_info": {},
            "current_version_info": self._history(),
        }

    def _history(self) -> list[dict[str, Any]]:
        conf = self._transfer.conf
        return [
            {
                "dict_name": conf.table,
                "version": each["number"],
                "depend": each["number"],  # whole versions only
                "id": each["entries"][-1]["id"],
                "key": each["entries"][0]["id"],
                "mode": "base",
                "input": each["entries"][-1]["input"],
                "output": conf.output_address,
                "status": _FINISHED,
                "status_str": "finished",
                "finish_time": _unix(each["finished"]),
                "create_time": _unix(each["begun"]),
                "meta_infos": {},
            }
            for each in self._transfer.history
        ]

    def _instances(self) -> list[dict[str, Any]]:
        conf, history = self._transfer.conf, self._transfer.history
        last: dict[str, Any] = history[-1] if history else {"number": 0, "begun": "", "finished": "", "entries": []}
        at, begun = _unix(last["finished"]), _unix(last["begun"])
        times = ("builded", "downloaded", "reloaded", "enabled")
        return [
            {
                "dict_name": conf.table,
                "mode": "base",
                "version": last["number"],
                "depend": last["number"],
                "id": last["entries"][-1]["id"] if last["entries"] else 0,
                "key": last["entries"][0]["id"] if last["entries"] else 0,
                "shard": shard,
                "source": "",
                "deploy_path": cube.deploy_path,
                "ip": cube.host,
                "port": cube.port,
                "agent_ip": conf.agents[shard, copy][0],
                "agent_port": conf.agents[shard, copy][1],
                "status_id": _ENABLED if history else _INIT,
                "status": "",
                **{f"{name}_time": at for name in times},
                **{f"{name}_start_time": begun for name in ("download", "reload", "enable")},
                "create_time": begun,
            }
            for (shard, copy), cube in sorted(conf.cubes.items())
        ]


def _envelope(success: str, message: str, data: Any) -> dict[str, Any]:
    return {"success": success, "message": message, "data": data}


def _unix(text: str) -> int:
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()) if text else 0
