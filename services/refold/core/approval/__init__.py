"""Who may let a call pass: policies, requirements, votes, decisions, signatures, and the catalog they rest on.

Read in this order: `condition` (what a rule may ask), `requirement` (who has to agree), `policy` (rules in order),
`signature` (what only the holder of a key can have said), `catalog` (what operators publish), `decision` (what is
signed, and what it allows), `ballot` (what votes add up to), `authority` (what a planner or an executor may do).
"""
