"""The JSON types of an app, as the control plane stores and shows it."""

from __future__ import annotations

from cloudedge.edge_bie.lab.state.json_types import ANY, BOOL, INT, STR, TIME, Listed, Mapped, Shape, Struct

__all__ = ["APP", "APP_ITEM", "APP_VIEW"]

_REFERENCE = Struct({"name": STR, "version": STR})
_NEVER = {"restartPolicy": "Never"}
_JOB = Struct({"completions": INT, "parallelism": INT, "backoffLimit": INT, "restartPolicy": STR}, defaults=_NEVER)
_APP_JOB = Struct(_JOB.fields, frozenset({"completions"}), defaults=_NEVER)
_METRIC = Struct(
    {
        "type": STR,
        "resource": Struct(
            {"name": STR, "targetType": STR, "value": STR, "averageValue": STR, "averageUtilization": INT}
        ),
    },
    defaults={"type": "Resource"},
)
_PORT = Struct(
    {
        "hostPort": INT, "containerPort": INT, "protocol": STR, "hostIP": STR, "serviceType": STR, "nodePort": INT,
    },
    defaults={"serviceType": "ClusterIP"},
)  # fmt: skip
_SERVICE: dict[str, Shape] = {
    "name": STR,
    "hostname": STR,
    "image": STR,
    "volumeMounts": Listed(
        Struct({"name": STR, "mountPath": STR, "subPath": STR, "readOnly": BOOL, "immutable": BOOL, "autoClean": BOOL})
    ),
    "ports": Listed(_PORT),
    "devices": Listed(Struct({"devicePath": STR, "policy": STR, "description": STR})),
    "args": Listed(STR),
    "command": Listed(STR),
    "workingDir": STR,
    "env": Listed(Struct({"name": STR, "value": STR})),
    "resources": Struct({"limits": Mapped(STR), "requests": Mapped(STR)}),
    "runtime": STR,
    "security": Struct({"privileged": BOOL}),
    "functionConfig": Struct({"name": STR, "runtime": STR}),
    "functions": Listed(Struct({"name": STR, "handler": STR, "codedir": STR})),
    "labels": Mapped(STR),
    "hostNetwork": BOOL,
    "replica": INT,
    "jobConfig": _JOB,
    "type": STR,
    "livenessProbe": Mapped(ANY, pointer=True),
    "imagePullPolicy": STR,
    "readinessProbe": Mapped(ANY, pointer=True),
    "startupProbe": Mapped(ANY, pointer=True),
}
_SERVICE_VIEW = Struct({**_SERVICE, "programConfig": STR}, defaults={"type": "deployment"})
_VOLUME: dict[str, Shape] = {
    "name": STR,
    "hostPath": Struct({"path": STR, "type": STR}),
    "config": _REFERENCE,
    "secret": _REFERENCE,
    "emptyDir": Struct({"medium": STR, "sizeLimit": STR}),
}
_ABOUT: dict[str, Shape] = {
    "name": STR, "type": STR, "mode": STR, "labels": Mapped(STR), "namespace": STR, "createTime": TIME, "version": STR,
    "selector": STR, "nodeSelector": STR, "description": STR, "system": BOOL, "cronStatus": INT, "cronTime": TIME,
    "hostNetwork": BOOL, "replica": INT, "workload": STR, "jobConfig": _APP_JOB, "ota": Struct({}, pointer=False),
    "autoScaleCfg": Struct({"minReplicas": INT, "maxReplicas": INT, "metrics": Listed(_METRIC)}),
    "preserveUpdates": BOOL,
}  # fmt: skip

APP_VIEW = Struct(
    {
        **_ABOUT,
        "initServices": Listed(_SERVICE_VIEW),
        "services": Listed(_SERVICE_VIEW),
        "volumes": Listed(Struct({**_VOLUME, "certificate": _REFERENCE})),
        "registries": Listed(Struct({"name": STR, "address": STR, "username": STR})),
        "dnsPolicy": STR,
    },
    frozenset({"cronStatus", "replica"}),
    defaults={"mode": "kube", "type": "container", "dnsPolicy": "ClusterFirst"},
)
"""The form that users write and read."""
APP = Struct(
    {
        **_ABOUT,
        "updateTime": TIME,
        "initServices": Listed(Struct(_SERVICE)),
        "services": Listed(Struct(_SERVICE)),
        "volumes": Listed(Struct(_VOLUME)),
        "dnsPolicy": STR,
    },
    frozenset({"replica"}),
)
"""The stored form, which nodes get."""
APP_ITEM = Struct(_ABOUT, frozenset({"selector", "nodeSelector"}))
"""The form in lists."""
