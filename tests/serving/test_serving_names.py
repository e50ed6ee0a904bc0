"""What the package exports, and what that costs."""

import subprocess
import sys

import cloudedge.serving


def test_every_name_leads_somewhere():
    assert dir(cloudedge.serving) == sorted(cloudedge.serving.__all__)
    for name in cloudedge.serving.__all__:
        assert getattr(cloudedge.serving, name) is not None


def test_administering_needs_nothing_of_what_answers():
    code = (
        "import sys; from cloudedge.serving import AdminClient, Variant; "
        "sys.exit(any(name in sys.modules for name in ('paddle', 'httptools', 'uvloop', 'grpc', 'orjson')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
