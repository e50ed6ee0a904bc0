"""A stock Paddle Serving 0.9.0 service for any model: parse the strings, run the model, write strings.

Runs on Python 3.9 with paddle-serving-server, in the image of paddle-serving.Dockerfile and in the tests that compare
us with it. Two liberties, both in its favour: a program in Paddle 3's `.json` form is found too, and oneDNN, which
Paddle 3 switches on by itself and which makes small models slower, is switched off.

    python web_service.py MODEL_DIR NAME RPC_PORT HTTP_PORT [--tuned]

MODEL_DIR holds the program, its parameters and serving_server_conf.prototxt. `--tuned` also does what a careful user
could: no log lines, and up to 8 requests merged within 2 ms.
"""

import glob
import json
import logging
import multiprocessing
import os
import sys

import numpy as np
import paddle.inference
from paddle_serving_app.local_predict import LocalPredictor
from paddle_serving_server.pipeline import Op
from paddle_serving_server.web_service import WebService


def find_files(self, folder, pattern):
    names = [pattern, "*.json"] if pattern == "*.pdmodel" else [pattern]
    return [path for name in names for path in glob.glob(os.path.join(folder, name))]


create_predictor = paddle.inference.create_predictor


def create_without_onednn(config):
    config.disable_mkldnn()
    config.disable_glog_info()
    return create_predictor(config)


LocalPredictor.search_suffix_files = find_files
paddle.inference.create_predictor = create_without_onednn


class ModelOp(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        ((_, given),) = input_dicts.items()
        feed = {
            name: np.asarray(json.loads(value)) if isinstance(value, str) else value for name, value in given.items()
        }
        return feed, False, None, ""

    def postprocess(self, input_data, fetch_data, data_id, log_id):
        return {name: json.dumps(array.tolist()) for name, array in fetch_data.items()}, None, ""


class ModelService(WebService):
    def get_pipeline_response(self, read_op):
        return ModelOp(name="model", input_ops=[read_op])


def load(model):
    """End with an error if the model does not load; in a process of its own.

    Stock then kills its process group, if there is one it may kill, and otherwise goes on without a predictor.
    """
    os.setsid()
    trial = LocalPredictor()
    trial.load_model_config(model_path=model, use_gpu=False, mem_optim=False, ir_optim=True)
    if trial.predictor is None:
        sys.exit(1)


def refuse_what_does_not_load(model):
    """End here if the model does not load: stock answers requests, health checks too, before it has tried."""
    trial = multiprocessing.get_context("spawn").Process(target=load, args=(model,))
    trial.start()
    trial.join()
    if trial.exitcode:
        sys.exit(f"the model in {model} does not load; see above")


def configuration(model, rpc_port, http_port, tuned):
    op = {
        "concurrency": 1,  # more threads would share one predictor without a lock and mix answers up
        "local_service_conf": {
            "client_type": "local_predictor",
            "model_config": model,
            "device_type": 0,
            "devices": "",
            "thread_num": 1,
            "mem_optim": False,  # not to be had for a program in `.json` form
            "ir_optim": True,
        },
    }
    if tuned:
        op.update(batch_size=8, auto_batching_timeout=2)
    return {
        "rpc_port": rpc_port,
        "http_port": http_port,
        "worker_num": 32,
        "dag": {"is_thread_op": True},
        "op": {"model": op},
    }


if __name__ == "__main__":
    model, name, rpc_port, http_port = sys.argv[1:5]
    tuned = "--tuned" in sys.argv
    refuse_what_does_not_load(model)
    service = ModelService(name=name)
    service.prepare_pipeline_config(yml_dict=configuration(model, int(rpc_port), int(http_port), tuned))
    if tuned:
        logging.disable(logging.CRITICAL)
    service.run_service()
