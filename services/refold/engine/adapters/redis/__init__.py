"""Ledger of effects and its outbox on Redis or Valkey.

`ledger` packs operations and reads replies, the `.lua` files have the rules, `link` is a connection, `checks` judges
the settings of a live server.
"""
