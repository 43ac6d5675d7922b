"""Redis and Valkey behind the ports: the ledger of effects and its outbox. `ledger` packs operations and reads replies,
the `.lua` files hold the rules, `link` is the one connection, `checks` judges a live server's settings."""
