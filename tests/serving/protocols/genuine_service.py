"""One web service, run by the genuine Pipeline server and by ours: only the import differs."""

try:
    from paddle_serving_server.web_service import Op, WebService
except ImportError:
    from cloudedge.serving import Op, WebService

import numpy as np


class EchoOp(Op):
    with_serving = False  # upstream: no model in config.yml

    def preprocess(self, input_dicts, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        if "fail" in inputs:
            raise ValueError("boom")
        if "product" in inputs:
            return inputs, False, 51, "no such user"
        return inputs, False, None, ""

    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        ((_, inputs),) = input_dicts.items()
        if "number" in inputs:
            return {"y": 1.5}, None, ""
        if "array" in inputs:
            return {"y": np.array([[2.46], [2.46]], "float32")}, None, ""
        if "late" in inputs:
            return {}, 52, "not today"
        lod = str(inputs.get("x.lod", ""))
        return {"y": str(inputs["x"]), "kind": type(inputs["x"]).__name__, "lod": lod, "log": str(log_id)}, None, ""


class EchoService(WebService):
    def get_pipeline_response(self, read_op):
        return EchoOp(name="uci", input_ops=[read_op])


service = EchoService(name="uci")

if __name__ == "__main__":
    service.prepare_pipeline_config("config.yml")
    service.run_service()
