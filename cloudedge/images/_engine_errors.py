"""The Docker engine: connections, and the SDK's errors translated to ours, for services and edge nodes alike."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from cloudedge.errors import ConfigError, NotFound, Rejected, Unavailable

__all__ = ["connect", "engine_errors"]


def connect(timeout_s: int = 60) -> Any:
    """Return the SDK's client for the engine that DOCKER_HOST names, by default this machine's.

    Args:
        timeout_s: How long the engine may be silent within one call.
    """
    with engine_errors("reach the Docker engine"):
        import docker  # noqa: PLC0415 - an extra

        client = docker.from_env(timeout=timeout_s)
        client.ping()
        return client


@contextlib.contextmanager
def engine_errors(attempted: str) -> Iterator[None]:
    """Turn the SDK's errors into ours."""
    try:
        from docker import errors  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigError(
            f"cannot {attempted}: the Docker SDK is not installed", hint="Run `pip install 'cloudedge[docker]'`."
        ) from None
    import requests  # noqa: PLC0415 - the SDK's HTTP client

    try:
        yield
    except errors.NotFound as error:
        raise NotFound(f"cannot {attempted}: {error.explanation or error}") from error
    except errors.APIError as error:
        raise Rejected(f"cannot {attempted}: the engine refuses: {error.explanation or error}") from error
    except (errors.DockerException, requests.RequestException) as error:
        raise Unavailable(
            f"cannot {attempted}: no Docker engine answers: {error}", hint="Start it, or name another with DOCKER_HOST."
        ) from error
