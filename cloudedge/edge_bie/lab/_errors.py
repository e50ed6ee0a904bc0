"""What the control plane says when it says no: a code, a status that follows from it, and a message."""

from __future__ import annotations

__all__ = ["ApiError", "in_use", "invalid", "not_found", "reserved", "taken"]

_STATUS = {
    "ErrResourceNotFound": 404,
    "ErrRequestMethodNotFound": 404,
    "ErrRequestAccessDenied": 401,
    "ErrResourceHasBeenUsed": 403,
    "UnknownError": 500,
}


class ApiError(Exception):
    """An answer that is an error, on its way to whoever writes answers; never leaves the lab."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """Of the answer; everything with a code of its own is 400."""
        return _STATUS.get(self.code, 400)


def invalid(why: str = "") -> ApiError:
    """Return what is said about a request that makes no sense."""
    text = "The request parameter is invalid."
    return ApiError("ErrRequestParamInvalid", f"非法的请求参数。\n{text}{f' ({why})' if why else ''}")


def taken() -> ApiError:
    """Return what is said when a name is in use, for everything but apps."""
    return invalid("this name is already in use")


def in_use(kind: str = "", name: str = "") -> ApiError:
    """Return what is said about something that others still use, and about an app's name that is taken."""
    what = f"({kind}) resource ({name})" if kind else "resource"
    return ApiError("ErrResourceHasBeenUsed", f"该资源名称已被占用\uff0c请更换命名。The {what} has been used.")


def reserved() -> ApiError:
    """Return what is said about a name that the control plane keeps for itself."""
    text = "The field (Name) cannot contain baetyl (case insensitive)"
    return ApiError("nonBaetyl", f"非法名称\uff0cbaetyl命名已被系统占用\uff0c请重新命名。\n{text}")


def not_found(kind: str, name: str) -> ApiError:
    """Return what is said about something that is not there."""
    return ApiError("ErrResourceNotFound", f"访问不存在的资源。\nThe ({kind}) resource ({name}) is not found.")
