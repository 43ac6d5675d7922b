"""A graph of LangGraph that no crash begins anew: what its nodes do are calls, its edges are plain code.

refold dev examples/langgraph_review.py
refold run start review --id review-1 --input '{"topic": "otters"}' --wait

A text is written, three readers look at it at once, and it is written again until nobody objects. The model is a
script, so that nothing here needs a network. (A file named `langgraph` would be imported in the package's stead.)
"""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from refold import App, Context

app = App("reviews")
READERS = ("editor", "lawyer", "expert")


class Review(TypedDict):
    """What the graph carries along; remarks of readers are added up."""

    topic: str
    text: str
    version: int
    remarks: Annotated[list[str], operator.add]


@app.tool(effect="pure")
def ask_model(who: str, what: str) -> str:
    """What a model answers: the writer a text, a reader an objection or nothing. A live one is asked here."""
    if who == "writer":
        return what
    return f"{who}: too short" if what.count("otters") < len(who) - 4 else ""


@app.tool(effect="keyed")
def publish(text: str, *, idempotency_key: str) -> str:
    """Publishes a text: a file under the key's name, so that the same call again publishes nothing more."""
    folder = Path(os.environ.get("WORLD", "world"))
    folder.mkdir(exist_ok=True)
    (folder / idempotency_key[:12]).write_text(text)
    return idempotency_key[:12]


def readers(state: Review) -> list[Send]:
    return [Send("read", {"who": who, "text": state["text"]}) for who in READERS]


def verdict(state: Review) -> str:
    of_this = [remark for remark in state["remarks"] if remark.startswith(f"{state['version']} ")]
    return "write" if of_this and state["version"] < 5 else "publish"


def graph_of(ctx: Context) -> Any:
    async def write(state: Review) -> dict[str, Any]:
        version = state["version"] + 1
        text = await ctx.call(ask_model, "writer", " ".join([state["topic"]] * version))
        return {"text": text, "version": version}

    async def read(state: dict[str, str]) -> dict[str, list[str]]:
        said = await ctx.call(ask_model, state["who"], state["text"])
        return {"remarks": [f"{len(state['text'].split())} {said}"] if said else []}

    async def decide(state: Review) -> dict[str, Any]:
        return {}

    async def out(state: Review) -> dict[str, str]:
        return {"text": await ctx.call(publish, state["text"])}

    graph: Any = StateGraph(Review)
    for name, node in (("write", write), ("read", read), ("decide", decide), ("publish", out)):
        graph.add_node(name, node)
    graph.add_edge(START, "write")
    graph.add_conditional_edges("write", readers, ["read"])
    graph.add_edge("read", "decide")
    graph.add_conditional_edges("decide", verdict, ["write", "publish"])
    graph.add_edge("publish", END)
    return graph.compile()


@app.agent
async def review(ctx: Context, topic: str) -> dict[str, Any]:
    done = await graph_of(ctx).ainvoke({"topic": topic, "text": "", "version": 0, "remarks": []})
    return {"published": done["text"], "version": done["version"], "remarks": done["remarks"]}
