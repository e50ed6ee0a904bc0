"""Ways to open the stores under test: picklable calls without arguments, so that other processes can."""

from __future__ import annotations

import uuid
from functools import partial

from cloudedge.hub.objects._bos import BosSettings, BosStore
from cloudedge.hub.objects._s3 import S3Settings, S3Store
from tests.hub.objects.s3_servers import ACCESS_KEY, BUCKET, SECRET_KEY


def bos_settings(bos, **other):
    return BosSettings(*bos.keys, **{"endpoint": bos.endpoint, **other})


def bos_opener(bos):
    return partial(BosStore, "bos://hub/some/where", bos_settings(bos))


def s3_settings(endpoint, **other):
    keys = {"access_key": ACCESS_KEY, "secret_key": SECRET_KEY}
    return S3Settings(endpoint_url=endpoint, path_style=True, **(keys | other))


def s3_opener(endpoint):
    """Open a place of its own: servers live as long as the session, prefixes as long as a test."""
    return partial(S3Store, f"s3://{BUCKET}/{uuid.uuid4().hex}", s3_settings(endpoint))
