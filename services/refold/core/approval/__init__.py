"""Approval of calls. Reading order: `condition` (language of rules), `requirement` (approvers), `policy` (ordered
rules), `signature` (authorship), `catalog` (published policies, roles, keys), `decision` (the signed result), `ballot`
(count of votes), `authority` (permissions of a planner or executor)."""
