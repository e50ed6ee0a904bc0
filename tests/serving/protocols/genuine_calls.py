"""Run by paddle-serving-client's own Python, 3.9: calls servers with the genuine clients, prints what came back."""

import json
import sys

import numpy as np
from paddle_serving_client import Client, HttpClient
from paddle_serving_client.pipeline import PipelineClient

CONF, BRPC, HTTP, GRPC = sys.argv[1:]
ROWS = np.array([[0.5, 0.25], [1, 2]], np.float32)
MANY = np.repeat(ROWS, 500, 0)
told = {}


def plain(value):
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def brpc():
    client = Client()
    client.load_client_config(CONF)
    client.connect(["127.0.0.1:" + BRPC])
    told["brpc one"] = plain(client.predict({"x": ROWS[0]}, ["price"], log_id=7))
    told["brpc batch"] = plain(client.predict({"x": ROWS}, ["price", "rank"], batch=True))
    told["brpc all"] = plain(client.predict({"x": ROWS}, batch=True))
    told["brpc wrong"] = client.predict({"x": ROWS[0, :1]}, ["price"])
    told["brpc after"] = plain(client.predict({"x": ROWS[0]}, ["price"]))
    split = Client()
    split.load_client_config(CONF)
    split.add_variant("old", ["127.0.0.1:" + BRPC], 50)
    split.add_variant("new", ["127.0.0.1:" + BRPC], 50)
    split.connect()
    answers = [split.predict({"x": ROWS[0]}, ["price"], need_variant_tag=True) for _ in range(40)]
    told["brpc tags"] = sorted({tag for _, tag in answers})
    told["brpc same"] = all(plain(answer) == {"price": [[0.75]]} for answer, _ in answers)


def http():
    for proto in (False, True):
        for gzip in (False, True):
            client = HttpClient()
            client.load_client_config(CONF)
            client.set_http_proto(proto)
            client.set_request_compress(gzip)
            client.set_response_compress(gzip)
            client.connect(["127.0.0.1:" + HTTP])
            answer = client.predict({"x": MANY}, ["price"], batch=True, log_id=7)
            told[f"http proto={proto} gzip={gzip}"] = numbers(answer, proto=proto)


def numbers(answer, *, proto):
    if proto:
        return list(answer.outputs[0].tensor[0].float_data)
    return answer["outputs"][0]["tensor"][0]["float_data"]


def grpc():
    client = HttpClient()
    client.load_client_config(CONF)
    client.set_use_grpc_client(True)
    client.connect(["127.0.0.1:" + GRPC])
    told["grpc"] = numbers(client.predict({"x": ROWS}, ["price"], batch=True), proto=True)


def pipeline():
    client = PipelineClient()
    client.connect(["127.0.0.1:" + GRPC])
    for name, options in (("repr", {}), ("tensors", {"pack_tensor_format": True}),
                          ("bytes", {"pack_tensor_format": True, "use_tensor_bytes": True})):  # fmt: skip
        answer = client.predict({"x": ROWS}, **options)
        told["pipeline " + name] = [answer.err_no, list(answer.key), list(answer.value)]
    answer = client.predict({"y": ROWS})
    told["pipeline wrong"] = answer.err_no


brpc()
http()
grpc()
pipeline()
sys.stdout.write("\nTOLD " + json.dumps(told) + "\n")
sys.stdout.flush()
