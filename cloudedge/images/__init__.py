"""Container images of cloudedge: built from `dockerfiles/` and a directory of wheels, pushed and listed."""

from cloudedge.images._build import Build, build
from cloudedge.images._catalogue import KINDS, Kind, dockerfiles_folder, local_name
from cloudedge.images._engine_errors import connect, engine_errors
from cloudedge.images._image_plan import Planned, kinds_of, plan_build, plan_push
from cloudedge.images._list_images import Listed, listed
from cloudedge.images._push import Pushed, push
from cloudedge.images._wheels import lock_wheels, make_wheelhouse, wheel_commands

__all__ = [
    "KINDS",
    "Build",
    "Kind",
    "Listed",
    "Planned",
    "Pushed",
    "build",
    "connect",
    "dockerfiles_folder",
    "engine_errors",
    "kinds_of",
    "listed",
    "local_name",
    "lock_wheels",
    "make_wheelhouse",
    "plan_build",
    "plan_push",
    "push",
    "wheel_commands",
]
