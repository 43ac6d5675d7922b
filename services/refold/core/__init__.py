"""Pure core: events, validity of records, fold, decisions. No I/O, clock or randomness: `now`, nonces and ids are
arguments. Reading order: `events`, `chain` (validity), `state` (fold), `decide` (input to events), `commands` (events
to requests), `replay` (code against history)."""
