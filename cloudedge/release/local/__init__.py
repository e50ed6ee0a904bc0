"""The local kind of target: a release's places as processes on this machine, supervised."""

__all__: list[str] = []
