"""The protocols of a replica: HTTP, gRPC and baidu_std, with limits, authentication, access log and hooks."""

from __future__ import annotations

from cloudedge.serving.protocols._access_log import Outcome, RequestObserver, RequestRecord
from cloudedge.serving.protocols._auth import DataPortAuth, Pinned
from cloudedge.serving.protocols._baidu_std import BaiduStdProtocol, Frame, FrameReader, pack_frame
from cloudedge.serving.protocols._faults import fault_of, timeout_of, too_long_http
from cloudedge.serving.protocols._general import add_tensor, general_http
from cloudedge.serving.protocols._grpc import serve_grpc
from cloudedge.serving.protocols._intake import Intake
from cloudedge.serving.protocols._limits import HttpLimits
from cloudedge.serving.protocols._ops import Op, Ops, RequestOp, WebService, load_ops
from cloudedge.serving.protocols._pipeline import pipeline_http
from cloudedge.serving.protocols._tls import Tls
from cloudedge.serving.protocols._traces import Traces

__all__ = [
    "BaiduStdProtocol",
    "DataPortAuth",
    "Frame",
    "FrameReader",
    "HttpLimits",
    "Intake",
    "Op",
    "Ops",
    "Outcome",
    "Pinned",
    "RequestObserver",
    "RequestOp",
    "RequestRecord",
    "Tls",
    "Traces",
    "WebService",
    "add_tensor",
    "fault_of",
    "general_http",
    "load_ops",
    "pack_frame",
    "pipeline_http",
    "serve_grpc",
    "timeout_of",
    "too_long_http",
]
