"""Approval of calls: policies, requirements, votes, decisions, signatures, and the catalog they rest on. Reading order:
`condition` (what a rule may ask), `requirement` (approvers), `policy` (rules in order), `signature` (proof of
authorship), `catalog` (publications of operators), `decision` (what is signed, and what it allows), `ballot` (the sum
of votes), `authority` (permissions of a planner or an executor)."""
