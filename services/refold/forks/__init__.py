"""Forks: the agent's code of today goes on from an earlier point of a recorded run, in this process alone.

A fork decides with the code of a planner: `decide`, the fold, the replay, the reaction of the code, on the clock of the
log. It takes recorded histories, and returns entries that are in no topic. It has no effects: this room reaches no
executor, producer, ledger or tool (an import contract), and the process of a fork refuses sockets, processes and files
to write (`ban`).
"""
