"""Stand-ins for what cloudedge talks to, public so that users can test their own code with them.

Each is a module of its own: `cloudedge.testing.upstream_cube`.
"""

__all__: list[str] = []
