"""The edge: BIE's API, its configuration as code, fleets in waves, a node of our own and a lab to try it all in.

Each part is a package of its own: `client` and `sync`, `fleet`, `node`, `lab`. What they share is here: how a release
becomes BIE objects, and the signed statement that a node checks.
"""

from cloudedge.edge_bie.model import Blob, Statement

__all__ = ["Blob", "Statement"]
