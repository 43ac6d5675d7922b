"""What agent authors import: an app, its tools and agents, and the context through which an agent reaches the world.

`app` holds the registry, `tool` and `agent` what was decorated, `context` what an agent may do. `shape` is where
Python values become canonical JSON and back. `scan` and `guard` keep agents deterministic, one before code runs and
one while it does; `banned` is what both look for. `plan` is the agent that every app has.
"""
