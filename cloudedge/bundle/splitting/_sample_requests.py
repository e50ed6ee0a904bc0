"""Sample requests that compare the whole model with its pieces: generated from a seed, or given by the user."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloudedge.bundle.splitting._cut_plan import Concat, Feed, Graph, Ids, Move, Slot
from cloudedge.errors import InputError

__all__ = ["Request", "make_requests", "read_requests"]

Request = Mapping[str, NDArray[Any]]
"""One array per input, by the input's name."""

_REQUEST_SIZES = ((1, 1), (3, 4), (2, 9), (33, 6))
"""Pairs of batch size and length of variable dimensions: single, short, long and many."""
_PADDING_SHARE = 0.3


def make_requests(graph: Graph, seed: int) -> list[Request]:
    """Generate requests with ids that are in every table they are looked up in, some of them padding."""
    random = np.random.default_rng(seed)
    limits, paddings = _id_ranges(graph)
    return [
        {
            feed.name: _random_array(
                feed, _shape(feed, *sizes), limits.get(feed.name), paddings.get(feed.name, ()), random
            )
            for feed in graph.feeds
        }
        for sizes in _REQUEST_SIZES
    ]


def _id_ranges(graph: Graph) -> tuple[dict[str, int], dict[str, set[int]]]:
    """Return, by input, the number of ids that every table it is looked up in has, and the padding ids."""
    limits: dict[str, int] = {}
    paddings: dict[str, set[int]] = {}
    for site in graph.sites:
        for feed in _slots(site.ids):
            limits[feed] = min(site.rows, limits.get(feed, site.rows))
            if site.padding_id >= 0:
                paddings.setdefault(feed, set()).add(site.padding_id)
    return limits, paddings


def _slots(ids: Ids) -> list[str]:
    if isinstance(ids, Slot):
        return [ids.feed]
    if isinstance(ids, Move):
        return _slots(ids.ids)
    if isinstance(ids, Concat):
        return [slot for part in ids.parts for slot in _slots(part)]
    return []


def _shape(feed: Feed, rows: int, length: int) -> list[int]:
    shape = [length if size < 0 else size for size in feed.shape]
    if feed.shape and feed.shape[0] < 0:
        shape[0] = rows
    return shape


def _random_array(
    feed: Feed, shape: list[int], limit: int | None, paddings: Collection[int], random: np.random.Generator
) -> NDArray[Any]:
    dtype = np.dtype(feed.dtype)
    if dtype.kind == "f":
        return random.random(shape, np.float32).astype(dtype)
    if dtype.kind == "b":
        return random.random(shape) < 0.5  # noqa: PLR2004 - either
    if limit is None:
        # A length, a count or a flag: unknown, and 1 is a value that most of them can have.
        return np.ones(shape, dtype)
    ids = random.integers(0, min(limit, int(np.iinfo(dtype).max) + 1), shape).astype(dtype)
    for padding in paddings:
        # Padding comes last in a slot, and the first element stays, so that no operator divides by a length of 0.
        hidden = np.sort(random.random(shape) < _PADDING_SHARE, axis=-1)
        if shape[-1] > 1:
            hidden[..., 0] = False
        ids[hidden] = padding
    return ids


def read_requests(path: Path, graph: Graph) -> list[Request]:
    """Read requests: an .npz of one array per input, or JSON with one object of arrays or a list of them.

    Raises:
        InputError: the file is unreadable, or lacks an input.
    """
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                found: list[dict[str, Any]] = [dict(arrays)]
        else:
            value = json.loads(path.read_bytes())
            found = value if isinstance(value, list) else [value]
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the samples in {path}: {error}", path=str(path)) from error
    return [_parse_request(sample, graph, f"{path}, request {number}") for number, sample in enumerate(found)]


def _parse_request(sample: Any, graph: Graph, what: str) -> Request:
    names = [feed.name for feed in graph.feeds]
    if not isinstance(sample, dict) or set(sample) != set(names):
        held = sorted(sample) if isinstance(sample, dict) else type(sample).__name__
        raise InputError(f"{what}: needs arrays for {', '.join(names)}, found {held}")
    arrays = {}
    for feed in graph.feeds:
        try:
            given = np.asarray(sample[feed.name])
            arrays[feed.name] = np.ascontiguousarray(given.astype(feed.dtype, casting="same_kind"))
        except (TypeError, ValueError) as error:
            raise InputError(f"{what}: {feed.name} cannot be read as {feed.dtype}: {error}") from error
        if given.ndim != len(feed.shape) or any(w not in (-1, h) for w, h in zip(feed.shape, given.shape, strict=True)):
            raise InputError(f"{what}: {feed.name} has shape {list(given.shape)}, not {list(feed.shape)}")
    return arrays
