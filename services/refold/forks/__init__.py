"""Forks: today's code of an agent, continued from an earlier point of a recorded run.

A fork uses the planner's `decide`, fold, replay and reaction, on the log's clock. Its entries are in no topic, and it
has no effects: this room imports no executor, producer, ledger or tool (an import contract), and its process refuses
sockets, processes and file writes (`ban`).
"""
