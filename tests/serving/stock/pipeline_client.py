"""Calls a service with stock Paddle Serving's own PipelineClient, under Python 3.9: PORT NAME ROW."""

import json
import sys

from paddle_serving_server.pipeline import PipelineClient

port, name, row = sys.argv[1:]
client = PipelineClient()
client.connect(["127.0.0.1:" + port])
answer = client.predict(feed_dict={"x": row}, fetch=["prob"], asyn=False, log_id=3)
sys.stdout.write(json.dumps({"err_no": answer.err_no, "key": list(answer.key), "value": list(answer.value)}))
