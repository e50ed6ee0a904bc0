"""The web_service.py of an export: the Python that a stock Pipeline service needs beside its config.yml."""

from __future__ import annotations

from cloudedge.bundle import Signature

__all__ = ["web_service"]

_SHIM = """
# This model is a .json program; the stock predictor looks for .pdmodel only.
_search = LocalPredictor.search_suffix_files


def _search_json_too(self, model_path, target_suffix):
    found = _search(self, model_path, target_suffix)
    return found or (_search(self, model_path, "*.json") if target_suffix == "*.pdmodel" else found)


LocalPredictor.search_suffix_files = _search_json_too
"""

_SERVICE = '''"""Paddle Serving's Pipeline service for the model {name}. Start it here: python web_service.py

A request's values are JSON arrays, batch dimension first, or tensors; so are the answer's.
"""
import json

import numpy as np
{imports}from paddle_serving_server.web_service import Op, WebService
{shim}
# By the names clients use: the program's own names, and types.
FEEDS = {feeds!r}
# By the program's own names: the names clients use.
FETCHES = {fetches!r}


class ModelOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        (values,) = input_dicts.values()
        feed = {{}}
        for alias, (name, dtype) in FEEDS.items():
            value = values[alias]
            feed[name] = np.array(json.loads(value) if isinstance(value, str) else value, dtype=dtype)
        return feed, False, None, ""

    def postprocess(self, input_data, fetch_data, data_id, log_id):
        answer = {{alias: json.dumps(np.asarray(fetch_data[name]).tolist()) for name, alias in FETCHES.items()}}
        return answer, None, ""


class Service(WebService):
    def get_pipeline_response(self, read_op):
        return ModelOp(name="model", input_ops=[read_op])


if __name__ == "__main__":
    service = Service(name={name!r})
    service.prepare_pipeline_config("config.yml")
    service.run_service()
'''


def web_service(name: str, signature: Signature, *, is_pir: bool) -> str:
    """Return web_service.py for a model; it runs on every Python that Paddle Serving 0.9 supports."""
    return _SERVICE.format(
        name=name,
        feeds={v.alias or v.name: (v.name, v.dtype) for v in signature.feed},
        fetches={v.name: v.alias or v.name for v in signature.fetch},
        imports="from paddle_serving_app.local_predict import LocalPredictor\n" if is_pir else "",
        shim=_SHIM if is_pir else "",
    )
