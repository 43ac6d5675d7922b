"""The pure middle: events, the rule for records that count, the fold of a history, decisions on inputs. No I/O, no
clock, no random numbers: `now`, nonces and ids are arguments. Reading order: `events` (the facts of a run), `chain`
(validity of a record), `state` (the fold), `decide` (an input becomes events), `commands` (events become requests to
others), `replay` (agent code against history)."""
