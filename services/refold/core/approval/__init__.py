"""Approval of calls. Reading order: `condition` (language of rules), `requirement` (approvers), `policy`, `signature`,
`catalog` (published policies, roles, keys), `decision`, `ballot` (count of votes), `authority` (permissions)."""
