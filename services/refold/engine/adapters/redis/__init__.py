"""Ledger of effects and its outbox on Redis or Valkey: `ledger` packs operations, reads replies and judges the settings
of a live server, the `.lua` files have the rules, `link` is a connection."""
