"""The pure middle: events, the rule of which record counts, the fold of a history, decisions on inputs. No I/O, no
clock, no random numbers: `now`, nonces and ids are arguments. Reading order: `events` (what can happen), `chain` (which
record counts), `state` (the fold), `decide` (an input becomes events), `commands` (events become requests to others),
`replay` (agent code against history)."""
