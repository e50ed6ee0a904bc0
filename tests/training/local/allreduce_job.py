"""What a local collective job runs in tests: adds the ranks up over gloo, and writes a model."""

import json
import os
import sys
from pathlib import Path

import paddle
from paddle import distributed

distributed.init_parallel_env()
rank = distributed.get_rank()
total = paddle.to_tensor([float(rank + 1)])
distributed.all_reduce(total)
sys.stdout.write(f"rank {rank} of {distributed.get_world_size()} has {total.item():.0f}\n")
sys.stdout.flush()
if rank == 0:
    output = Path(os.environ["CLOUDEDGE_OUTPUT"])
    (output / "model.bin").write_bytes(b"weights")
    (output / "metrics.json").write_text(json.dumps({"total": total.item()}))
