"""A deployment in five steps, against the fake cloud of `fake_cloud.py`.

    python examples/fake_cloud.py
    refold dev examples/deploy.py
    refold run start deploy --input '{"service": "shop", "version": "1.2.3"}'

Kill any process at any moment: every effect happens once. `deploy_once` shows what can not be known: it switches the
mesh with a tool whose receiver neither deduplicates nor answers questions, so that a crash in the middle of it leaves
the call in doubt, for a human to decide.
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from refold import DID_NOT_HAPPEN, App, Context, NotDone, Retry, TerminalError

app = App("deployments")

PATIENT = Retry(attempts=8, base=timedelta(milliseconds=200), cap=timedelta(seconds=5))


class Image(BaseModel):
    """A container image in the registry."""

    name: str
    digest: str


class Report(BaseModel):
    """What a deployment did, step by step."""

    service: str
    version: str
    migration: str
    image: Image
    load_balancer: str
    mesh: str
    healthy: bool


def migration_happened(service: str, version: str, *, idempotency_key: str) -> Any:
    """Asks the cloud whether the migration of this call took place."""
    done = ask("GET", f"/did/{idempotency_key}")
    return DID_NOT_HAPPEN if done is None else done["id"]


@app.tool(effect="probed", probe=migration_happened, timeout=timedelta(seconds=30), retry=PATIENT)
def run_migrations(service: str, version: str, *, idempotency_key: str) -> str:
    """Migrates the database. Run twice it would migrate twice, but the cloud can tell whether it was."""
    return done("run_migrations", {"service": service, "version": version}, {"Operation-Id": idempotency_key})


@app.tool(effect="keyed", timeout=timedelta(seconds=60), retry=PATIENT)
def push_image(service: str, version: str, *, idempotency_key: str) -> Image:
    """Builds the image and pushes it to the registry."""
    name = f"{service}:{version}"
    return Image(name=name, digest=done("push_image", {"image": name}, {"Idempotency-Key": idempotency_key}))


@app.tool(effect="keyed", timeout=timedelta(seconds=30), retry=PATIENT)
def update_load_balancer(service: str, image: Image, *, idempotency_key: str) -> str:
    """Adds the new version's hosts to the load balancer."""
    return done("update_load_balancer", {"service": service, "image": image.name}, {"Idempotency-Key": idempotency_key})


@app.tool(effect="keyed", timeout=timedelta(seconds=30), retry=PATIENT)
def switch_mesh(service: str, version: str, *, idempotency_key: str) -> str:
    """Sends the service mesh's traffic to the new version."""
    return done("switch_mesh", {"service": service, "version": version}, {"Idempotency-Key": idempotency_key})


@app.tool(effect="once", timeout=timedelta(seconds=30), retry=PATIENT)
def switch_mesh_once(service: str, version: str) -> str:
    """Like switch_mesh, for a mesh that knows no keys: when the outcome is unknown, only a human can tell."""
    return done("switch_mesh", {"service": service, "version": version}, {})


@app.tool(effect="pure", timeout=timedelta(seconds=10), retry=PATIENT)
def check_health(service: str, version: str) -> bool:
    """Asks what version answers."""
    found = ask("GET", f"/health/{service}")
    return bool(found["version"] == version)


@app.agent
async def deploy(ctx: Context, service: str, version: str) -> Report:
    """Deploys a version of a service."""
    return await five_steps(ctx, service, version, mesh=switch_mesh)


@app.agent
async def deploy_once(ctx: Context, service: str, version: str) -> Report:
    """Deploys with a mesh that can not deduplicate."""
    return await five_steps(ctx, service, version, mesh=switch_mesh_once)


async def five_steps(ctx: Context, service: str, version: str, *, mesh: Any) -> Report:
    """What both deployments have in common."""
    ctx.note("plan", ["migrations", "image", "load balancer", "mesh", "health"])
    migration = await ctx.call(run_migrations, service, version)
    image = await ctx.call(push_image, service, version)
    load_balancer = await ctx.call(update_load_balancer, service, image)
    switched = await ctx.call(mesh, service, version)
    healthy = await ctx.call(check_health, service, version)
    if not healthy:
        raise TerminalError(f"{service} does not answer as {version}", hint="look at the mesh")
    return Report(
        service=service,
        version=version,
        migration=migration,
        image=image,
        load_balancer=load_balancer,
        mesh=switched,
        healthy=healthy,
    )


def done(action: str, body: dict[str, str], headers: dict[str, str]) -> str:
    """The id of an effect in the cloud."""
    return str(ask("POST", f"/do/{action}", json.dumps(body), headers)["id"])


def ask(method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None) -> Any:
    """The cloud's answer; None when it knows nothing of it.

    Only a connection that never came about is `NotDone`. Whatever goes wrong later leaves the outcome unknown.
    """
    address = os.environ.get("FAKE_CLOUD", "http://127.0.0.1:8901")
    connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
    try:
        connection.connect()
    except OSError as error:
        raise NotDone(
            f"no fake cloud at {address} ({error})",
            hint="start it with `python examples/fake_cloud.py`, or set FAKE_CLOUD to where it is",
        ) from error
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        answer = json.loads(response.read())
    finally:
        connection.close()
    if response.status == 404:
        return None
    if 400 <= response.status < 500:
        raise TerminalError(f"the cloud refused {path}: {answer}", hint="the request is wrong, not the network")
    if response.status >= 500:
        raise RuntimeError(f"the cloud broke down over {path}: {answer}")
    return answer
