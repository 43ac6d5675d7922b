"""A release that has others do its work. One of them needs people, who may decide on the release itself.

refold dev examples/family.py
refold run start release --id release-1 --input '{"services": ["shop", "mail"]}'
refold approval list
refold approval approve QUESTION    # as the list has it; where only one is asked, `show release-1` has it too
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from refold import App, ChildFailed, Context

app = App("releases")


@app.tool(effect="keyed")
def build(service: str, *, idempotency_key: str) -> str:
    """Builds an image under the key's name: the same call again builds the same one."""
    return _write(idempotency_key, f"built {service}")


@app.tool(effect="keyed", approval="required")
def switch(service: str, image: str, *, idempotency_key: str) -> str:
    """Sends the traffic of everybody to an image."""
    return _write(idempotency_key, f"switched {service} to {image}")


def _write(key: str, text: str) -> str:
    folder = Path(os.environ.get("WORLD", "world"))
    folder.mkdir(exist_ok=True)
    (folder / key[:12]).write_text(f"{text}\n")
    return key[:12]


@app.agent
async def deploy(ctx: Context, service: str) -> str:
    return await ctx.call(switch, service, await ctx.call(build, service))


@app.agent
async def release(ctx: Context, services: list[str]) -> dict[str, str]:
    async def one(service: str) -> tuple[str, str]:
        try:
            return service, await ctx.run(deploy, {"service": service})
        except ChildFailed as error:  # who is refused holds up nobody else
            return service, f"not released: {error}"

    return dict(await asyncio.gather(*map(one, services)))
