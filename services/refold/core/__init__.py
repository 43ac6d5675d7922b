"""The pure middle: what an event is, which record counts, how a history folds, what an input causes.

Nothing here does I/O, reads a clock or draws a random number: `now`, nonces and ids come in as arguments.
Read in this order: `events` (what can happen), `chain` (which record counts), `state` (the fold), `decide`
(an input becomes events), `commands` (events become requests to others), `replay` (agent code against history).
"""
