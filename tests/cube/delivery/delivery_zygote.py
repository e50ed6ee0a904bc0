"""A process that delivers in children of its own, so that each can be killed and none pays for Python's start.

Reads lines of JSON, {"fleet": [...], "work": DIR, "hub": DIR, "version": REF, "bases": [REF...]}; says the child's
pid, then how it ended: 0 done, 1 refused with the reason, -9 killed.
"""

from __future__ import annotations

import json
import os
import sys

from cloudedge.bundle import Bundle
from cloudedge.cube.delivery import ArtifactCache, CubeReplica, Delivery, DeliveryPolicy, TableVersion
from cloudedge.errors import CloudEdgeError
from cloudedge.hub import LocalHub


def deliver(job: dict) -> str:
    hub = LocalHub(job["hub"])
    tables = {ref: Bundle.open(ref, hub=hub) for ref in (job["version"], *job["bases"])}
    versions = {ref: TableVersion("emb", bundle.pin, bundle.sparse["emb"]) for ref, bundle in tables.items()}
    replicas = [CubeReplica(**each) for each in job["fleet"]]
    policy = DeliveryPolicy(attempts=job.get("attempts", 7), pause_s=0.3)
    with Delivery(replicas, ArtifactCache(job["work"]), policy=policy) as delivery:
        try:
            delivery.deliver([versions[job["version"]]], [versions[ref] for ref in job["bases"]])
        except CloudEdgeError as error:
            return str(error)
    return ""


def say(what: dict) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            reason = deliver(job)
            os.write(writing, reason.encode())
            os._exit(1 if reason else 0)
        os.close(writing)
        say({"pid": pid})
        with os.fdopen(reading, "rb") as pipe:
            reason = pipe.read().decode()
        _, status = os.waitpid(pid, 0)
        say({"code": os.waitstatus_to_exitcode(status), "reason": reason})


if __name__ == "__main__":
    main()
