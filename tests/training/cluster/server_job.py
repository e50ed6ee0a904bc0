"""What a job with parameter servers runs in tests: every pod checks what it was told, and workers reach every server.

Paddle's own wheels have no parameter servers, so a server here only listens, as one of Paddle's would, and counts the
workers that have come; the way there, the order of starting and ending, is the same.
"""

import os
import socket
import sys
import time

WAIT_S = 120

role, index = os.environ["TRAINING_ROLE"], int(os.environ["PADDLE_TRAINER_ID"])
servers = os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
workers = int(os.environ["PADDLE_TRAINERS_NUM"])


def serve():
    port = int(servers[index].rpartition(":")[2])
    with socket.create_server(("0.0.0.0", port)) as listening:
        listening.settimeout(WAIT_S)
        came = set()
        while len(came) < workers:
            connection, _ = listening.accept()
            with connection:
                came.add(connection.recv(100))
                connection.sendall(b"server %d" % index)
    return f"server {index} saw {len(came)} workers"


def ask(address):
    host, _, port = address.rpartition(":")
    for _ in range(WAIT_S):
        try:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(b"worker %d" % index)
                return connection.recv(100).decode()
        except OSError:
            time.sleep(1)  # it has not begun to listen
    raise SystemExit(f"{address} does not answer")


def work():
    assert len(os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")) == workers
    assert [ask(address) for address in servers] == [f"server {number}" for number in range(len(servers))]
    return f"worker {index} reached {len(servers)} servers"


sys.stdout.write(f"{serve() if role == 'PSERVER' else work()}\n")
