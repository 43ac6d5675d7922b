"""Forks: today's code of an agent, continued from an earlier point of a recorded run.

Decisions are a planner's (`decide`, fold, replay), on the log's clock; entries are in no topic. A fork has no effects:
this room imports no executor, producer, ledger or tool, and its process refuses sockets, processes and file writes."""
