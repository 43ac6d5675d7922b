"""API of agent authors: an app, its tools and agents, and the context through which an agent reaches the world.

`app` holds the registry, `tool` and `agent` what was decorated, `context` what an agent may do. `shape` is where
Python values become canonical JSON and back. `determinism` keeps agents deterministic: `scan` before code runs, `watch`
while it does; `banned` is what both look for. `plan` is an agent that an app may have.
"""
