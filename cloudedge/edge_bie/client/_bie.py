"""`Bie`: the client of a BIE control plane, with safe writes.

A write is checked before, read back after, and skipped if it changes nothing. Callers see neither the differences
between BIE's two representations of an object, nor its paths.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final, Literal

from cloudedge.clock import Clock, SystemClock
from cloudedge.config import CloudConfig
from cloudedge.edge_bie.client._apps import App
from cloudedge.edge_bie.client._audit import Audit
from cloudedge.edge_bie.client._configs import Config, Registry, Secret
from cloudedge.edge_bie.client._http import Transport
from cloudedge.edge_bie.client._node_calls import NodeCalls
from cloudedge.edge_bie.client._resources import read_as, read_whole_app
from cloudedge.edge_bie.client._rules import (
    check_app,
    check_config,
    check_registry,
    check_secret,
)
from cloudedge.edge_bie.client._writer_lock import turn
from cloudedge.edge_bie.client._writes import Writer, Written
from cloudedge.errors import Conflict, InputError

__all__ = ["Bie", "Mountable"]

_PATHS: Final = {"config": "configs", "secret": "secrets", "registry": "registries"}
Mountable = Literal["config", "secret", "registry"]


class Bie(NodeCalls):
    """A BIE control plane. Threads may share it; it is a context manager.

    Example:
        with Bie.from_url("http://127.0.0.1:9004") as bie:
            bie.put_config(Config("greeting", {"hello.txt": Text("hello")}))
    """

    def __init__(self, settings: CloudConfig, *, clock: Clock | None = None, audit: Audit | None = None) -> None:
        self.settings = settings
        clock = clock or SystemClock()
        transport = Transport(settings, clock)
        super().__init__(transport, Writer(transport, clock, audit), clock, namespace=settings.namespace)

    @classmethod
    def from_url(cls, url: str, *, clock: Clock | None = None, audit: Audit | None = None, **settings: Any) -> Bie:
        """Open a control plane by its address; the rest is as in the ``clouds`` section of cloudedge.yaml.

        Raises:
            ConfigError: a setting is invalid.
        """
        return cls(CloudConfig.from_url(url, **settings), clock=clock, audit=audit)

    def __enter__(self) -> Bie:  # noqa: PYI034 - typing.Self is newer than 3.10
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Bie({self.settings.url!r})"

    @property
    def url(self) -> str:
        """The control plane's address."""
        return self._transport.url

    def turn(self) -> AbstractContextManager[None]:
        """Hold this machine's only write access to the namespace; waits for the current holder.

        Raises:
            Conflict: another process held it for too long.
        """
        return turn(self.settings, self._clock)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    # configs

    def configs(self, *, selector: str = "") -> list[Config]:
        """List configs without BIE's own."""
        return [read_as(Config, item) for item in self._resources.every("configs", selector)]

    def config(self, name: str) -> Config | None:
        """Read a config, or return None."""
        found = self._resources.get("config", name, f"configs/{name}")
        return None if found is None else read_as(Config, found)

    def put_config(self, config: Config) -> Config:
        """Create or replace a config; every app that mounts it then has its new version.

        Raises:
            InputError: nodes could not use it.
            Conflict: the config read back differs from the one written.
        """
        return self._resources.put("config", "configs", check_config(config), Config)

    def delete_config(self, name: str) -> None:
        """Delete a config; a missing one is no error.

        Raises:
            Conflict: an app mounts it.
        """
        self._resources.delete("config", name, f"configs/{name}")

    # secrets

    def secrets(self) -> list[Secret]:
        """List secrets, without their data."""
        return [read_as(Secret, item) for item in self._resources.every("secrets")]

    def secret(self, name: str) -> Secret | None:
        """Read a secret, or return None."""
        found = self._resources.get("secret", name, f"secrets/{name}")
        secret = None if found is None else read_as(Secret, found)
        return None if secret is None or self._is_registry(secret) else secret

    def put_secret(self, secret: Secret) -> Secret:
        """Create or replace a secret.

        Raises:
            InputError: BIE would refuse it.
            Conflict: the secret read back differs from the one written, or the name belongs to a registry.
        """
        check_secret(secret)
        found = self._resources.get("secret", secret.name, f"secrets/{secret.name}")
        if found is not None and self._is_registry(read_as(Secret, found)):
            raise Conflict(f"the name {secret.name} belongs to a registry, and BIE keeps both in one place")
        return self._resources.put("secret", "secrets", secret, Secret)

    def delete_secret(self, name: str) -> None:
        """Delete a secret; a missing one is no error."""
        if self.secret(name) is not None:
            self._resources.delete("secret", name, f"secrets/{name}")

    def _is_registry(self, secret: Secret) -> bool:
        """Return True for a registry: read as a secret, BIE shows one with its password, and lets it be overwritten."""
        is_alike = set(secret.data) == {"address", "username", "password"}
        return is_alike and secret.name in {registry.name for registry in self.registries()}

    # registries

    def registries(self) -> list[Registry]:
        """List registries."""
        return [read_as(Registry, item) for item in self._resources.every("registries")]

    def registry(self, name: str) -> Registry | None:
        """Read a registry without its password, or return None."""
        found = self._resources.get("registry", name, f"registries/{name}")
        registry = None if found is None else read_as(Registry, found)
        # A secret read as a registry has no address.
        return None if registry is None or not registry.address else registry

    def put_registry(self, registry: Registry) -> Registry:
        """Create a registry, or change its description, the only field that BIE can change.

        Raises:
            InputError: it exists with another address or user, or lacks the password that creating it needs.
            Conflict: the name belongs to a secret.
        """
        check_registry(registry)
        current = self.registry(registry.name)
        if current is None and self.secret(registry.name) is not None:
            raise Conflict(f"the name {registry.name} belongs to a secret, and BIE keeps both in one place")
        if current is None and not registry.password:
            raise InputError(f"registry {registry.name} does not exist and cannot be created without a password")
        if current is not None and (current.address, current.username) != (registry.address, registry.username):
            raise InputError(
                f"registry {registry.name} is {current.username} at {current.address}, and BIE can change neither",
                hint="Give the new registry another name, or delete the old one first.",
            )
        return self._resources.put("registry", "registries", registry, Registry)

    def refresh_registry(self, name: str, password: str) -> None:
        """Give a registry a new password. It cannot be read back: a wrong one shows when a node pulls."""
        write = Written("refresh", "registry", name, "POST", f"registries/{name}/refresh", {"password": password})
        with self._writer.alone("registry", name):
            self._writer.write(write)

    def delete_registry(self, name: str) -> None:
        """Delete a registry; a missing one is no error."""
        if self.registry(name) is not None:
            self._resources.delete("registry", name, f"registries/{name}")

    # apps

    def apps(self, *, selector: str = "") -> list[App]:
        """List summaries of apps without BIE's own; summaries have no services, volumes or registries."""
        return [read_as(App, item) for item in self._resources.every("apps", selector)]

    def app(self, name: str) -> App | None:
        """Read an app, or return None."""
        found = self._resources.get("app", name, f"apps/{name}")
        return None if found is None else read_whole_app(found)

    def put_app(self, app: App) -> App:
        """Create or replace an app; matching nodes redeploy it.

        Raises:
            InputError: nodes could not run it, or its type or mode would change.
            Conflict: the app read back differs from the one written.
        """
        return self._resources.put("app", "apps", check_app(app), App)

    def delete_app(self, name: str) -> None:
        """Delete an app; a missing one is no error. Matching nodes stop it."""
        self._resources.delete("app", name, f"apps/{name}")

    def repin(self, name: str) -> None:
        """Write an app unchanged, which pins it to the newest version of everything it mounts.

        Raises:
            NotFound: the app does not exist.
        """
        self._resources.repin_app(name)

    # objects of any kind

    def apps_of(self, kind: Mountable, name: str) -> list[App]:
        """List summaries of the apps that mount a config or secret, or pull from a registry."""
        return self._resources.users(_PATHS[kind], name)

    def delete(self, kind: Mountable | Literal["app", "node"], name: str) -> None:
        """Delete an object; a missing one is no error.

        Raises:
            Conflict: an app needs it.
        """
        {
            "config": self.delete_config,
            "secret": self.delete_secret,
            "registry": self.delete_registry,
            "app": self.delete_app,
            "node": self.delete_node,
        }[kind](name)
