"""Real agents under a fleet: each in a thread, with servers that are played in this process."""

import contextlib
import threading

from cloudedge.edge_bie.client import Node
from cloudedge.edge_bie.node import Link, NodeAgent, NodeSettings
from tests.edge_bie.node.played_runtime import PlayedRuntime
from tests.edge_bie.node.world import free_port


class Agents:
    """Nodes of our own.

    Args:
        bie: The account that knows them.
        sync_url: Where they report.
        key: Who signs what they run.
    """

    def __init__(self, bie, sync_url, key):
        self.bie, self.sync_url, self.key = bie, sync_url, key
        self.agents, self.runtimes = {}, {}

    @contextlib.contextmanager
    def running(self, folders):
        """Run one agent per name and folder until the block ends."""
        threads = []
        try:
            for name, folder in folders.items():
                self.bie.put_node(Node(name))
                self.runtimes[name] = PlayedRuntime()
                settings = NodeSettings(name, folder, key=self.key, interval_s=0.3, address="127.0.0.1")
                self.agents[name] = NodeAgent(settings, Link(self.sync_url, name), self.runtimes[name])
                threads.append(threading.Thread(target=self.agents[name].run, name=name))
                threads[-1].start()
            yield self
        finally:
            for agent in self.agents.values():
                agent.stop()
            for thread in threads:
                thread.join()
            for name, agent in self.agents.items():
                agent.close()
                self.runtimes[name].stop()

    def answers(self, port):
        """Return which version answers on each node; None: nobody does."""
        return {name: runtime.asks(port) for name, runtime in self.runtimes.items()}


__all__ = ["Agents", "free_port"]
