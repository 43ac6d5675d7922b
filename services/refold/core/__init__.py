"""The pure core: events, validity of records, fold of a history, decisions on inputs. No I/O, no clock, no randomness:
`now`, nonces and ids are arguments. Reading order: `events` (facts of a run), `chain` (validity), `state` (the fold),
`decide` (an input becomes events), `commands` (events become requests), `replay` (agent code against history)."""
