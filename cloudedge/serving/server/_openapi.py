"""The description of `/v1/predict`: as OpenAPI, and as a self-contained HTML page."""

from __future__ import annotations

import html
import json
from typing import Any

from cloudedge.bundle import Signature, Variable
from cloudedge.serving.model import alias

__all__ = ["docs_page", "openapi"]

_REASONS = {
    "400": "not what the model takes",
    "401": "a token is needed",
    "403": "choosing a version needs the admin token",
    "404": "no such version or variant",
    "413": "the body is too long",
    "429": "overloaded: nothing was done",
    "500": "the model failed",
    "503": "no version is active, or rows could not be had",
    "504": "the deadline passed",
}


def _kind(variable: Variable) -> str:
    return {"bool": "boolean", "int": "integer", "uint": "integer"}.get(variable.dtype.rstrip("0123456789"), "number")


def _schema(variable: Variable) -> dict[str, Any]:
    found: dict[str, Any] = {"type": _kind(variable)}
    for side in reversed(variable.shape):
        found = {"type": "array", "items": found} | ({"minItems": side, "maxItems": side} if side >= 0 else {})
    shape = ", ".join(["rows", *map(str, variable.shape)])
    return {"type": "array", "items": found, "minItems": 1, "description": f"{variable.dtype} [{shape}]"}


def _example(variable: Variable) -> Any:
    value: Any = {"boolean": False, "integer": 0, "number": 0.0}[_kind(variable)]
    for side in reversed(variable.shape):
        value = [value] * (side if side >= 0 else 1)
    return [value]


def _body(signature: Signature) -> dict[str, Any]:
    return {"inputs": {alias(v): _example(v) for v in signature.feed}, "outputs": [alias(v) for v in signature.fetch]}


def _object(variables: tuple[Variable, ...]) -> dict[str, Any]:
    return {"type": "object", "properties": {alias(v): _schema(v) for v in variables}}


def openapi(signature: Signature, service: str) -> dict[str, Any]:
    """Describe the plain JSON endpoint for one signature."""
    feeds = _object(signature.feed) | {"required": [alias(v) for v in signature.feed], "additionalProperties": False}
    request = {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "inputs": feeds,
            "outputs": {"type": "array", "items": {"enum": [alias(v) for v in signature.fetch]}},
        },
    }
    answer = {
        "type": "object",
        "required": ["outputs", "pin"],
        "properties": {
            "outputs": _object(signature.fetch),
            "pin": {"type": "string"},
            "tag": {"type": "string"},
            "defaulted": {"type": "number", "description": "share of looked-up rows that are declared defaults"},
        },
    }
    fault = {
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"type": "string"}, "kind": {"type": "string"}, "hint": {"type": "string"}},
    }

    def content(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"content": {"application/json": {"schema": schema} | more}}

    return {
        "openapi": "3.1.0",
        "info": {"title": service, "version": "1"},
        "paths": {
            "/v1/predict": {
                "post": {
                    "operationId": "predict",
                    "summary": "Answer one request",
                    "requestBody": {"required": True} | content(request, example=_body(signature)),
                    "responses": {
                        "200": {"description": "the outputs, and the version they come from"} | content(answer),
                        **{status: {"description": why} | content(fault) for status, why in _REASONS.items()},
                    },
                }
            }
        },
    }


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{service}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:52em;margin:2em auto;padding:0 1em}}
table{{border-collapse:collapse}}td,th{{text-align:left;padding:.2em 1em .2em 0}}
textarea{{width:100%;height:12em;font:13px monospace}}
pre{{background:#f4f4f4;padding:1em;white-space:pre-wrap}}</style>
<h1>{service}</h1>
<p><code>POST /v1/predict</code> takes JSON; its form is in <a href="openapi.json">openapi.json</a>.</p>
<h2>Inputs</h2><table><tr><th>name<th>type<th>shape</tr>{feeds}</table>
<h2>Outputs</h2><table><tr><th>name<th>type<th>shape</tr>{fetches}</table>
<h2>Try it</h2><textarea id="body">{example}</textarea><p><button id="go">send</button></p><pre id="answer"></pre>
<script>
document.getElementById("go").onclick = async () => {{
  const answer = await fetch("v1/predict", {{method: "POST", body: document.getElementById("body").value}});
  document.getElementById("answer").textContent = answer.status + "\\n" + await answer.text();
}};
</script></html>
"""


def _rows(variables: tuple[Variable, ...]) -> str:
    return "".join(
        f"<tr><td>{html.escape(alias(v))}<td>{v.dtype}<td>[{', '.join(['rows', *map(str, v.shape)])}]</tr>"
        for v in variables
    )


def docs_page(signature: Signature, service: str) -> str:
    """Write the HTML page that describes the plain JSON endpoint."""
    return _PAGE.format(
        service=html.escape(service),
        feeds=_rows(signature.feed),
        fetches=_rows(signature.fetch),
        example=html.escape(json.dumps(_body(signature))),
    )
