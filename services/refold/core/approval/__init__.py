"""Who may let a call pass: policies, requirements, votes, decisions, signatures, and the catalog they rest on."""
