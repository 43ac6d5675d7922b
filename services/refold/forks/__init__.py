"""Forks: the agent's code of today goes on from an earlier point of a recorded run, in this process alone.

A fork decides by what decides in a planner: `decide`, the fold, the replay, the reaction of the code, on the clock of
the log. It reads recorded histories that it is handed, and gives entries that lie in no topic. It cannot fire because
there is nothing to fire with: this room reaches no executor, producer, ledger or tool (an import contract), and the
process that runs a fork refuses sockets, processes and files to write (`ban`).
"""
