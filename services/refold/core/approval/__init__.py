"""Approval of calls: policies, requirements, votes, decisions, signatures, and the catalog they rest on. Reading order:
`condition` (the language of rules), `requirement` (approvers), `policy` (rules in order), `signature` (proof of
authorship), `catalog` (publications of operators), `decision` (the signed result), `ballot` (the sum of votes),
`authority` (permissions of a planner or an executor)."""
