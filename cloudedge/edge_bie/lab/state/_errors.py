"""The control plane's errors: a code, its HTTP status, and a message."""

from __future__ import annotations

__all__ = ["ApiError", "in_use", "invalid", "not_found", "reserved", "taken", "too_large"]

_STATUS = {
    "ErrResourceNotFound": 404,
    "ErrRequestMethodNotFound": 404,
    "ErrRequestAccessDenied": 401,
    "ErrResourceHasBeenUsed": 403,
    "UnknownError": 500,
}


class ApiError(Exception):
    """A refusal on its way to the answer; never leaves the lab."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status; every code without one of its own is 400."""
        return _STATUS.get(self.code, 400)


def invalid(why: str = "") -> ApiError:
    """Return the error for an invalid request."""
    text = "The request parameter is invalid."
    return ApiError("ErrRequestParamInvalid", f"非法的请求参数。\n{text}{f' ({why})' if why else ''}")


def taken() -> ApiError:
    """Return the error for a name in use, for everything but apps."""
    return invalid("this name is already in use")


def in_use(kind: str = "", name: str = "") -> ApiError:
    """Return the error for an object that others still use, and for an app's name in use."""
    what = f"({kind}) resource ({name})" if kind else "resource"
    return ApiError("ErrResourceHasBeenUsed", f"该资源名称已被占用\uff0c请更换命名。The {what} has been used.")


def reserved() -> ApiError:
    """Return the error for a name that the control plane reserves."""
    text = "The field (Name) cannot contain baetyl (case insensitive)"
    return ApiError("nonBaetyl", f"非法名称\uff0cbaetyl命名已被系统占用\uff0c请重新命名。\n{text}")


def not_found(kind: str, name: str) -> ApiError:
    """Return the error for a missing object."""
    return ApiError("ErrResourceNotFound", f"访问不存在的资源。\nThe ({kind}) resource ({name}) is not found.")


def too_large(name: str, size: int, limit: int) -> ApiError:
    """Return the error for data of `limit` bytes or more."""
    text = f"Data too large. Resource ({name}), size=({size}), max=({limit - 1})"
    return ApiError("ErrDataTooLarge", f"数据量过大。\n{text}")
