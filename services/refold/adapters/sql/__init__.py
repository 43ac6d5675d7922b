"""Views in SQLite or Postgres: tables of generations, under stable names for queries of users.

`opening` takes a URL, `database` manages generations, `store` writes the rows of one, `statements` contains its SQL;
`sqlite` and `postgres` contain the differences. Rows go through the driver in batches; SQLAlchemy creates tables, keeps
connections, and classifies errors.

**Threads** One thread writes a generation. Any thread may read: each call takes a pooled connection for its duration, a
scan or a snapshot until it ends. Readers see the commits before their start, and block nothing.

**Texts** may contain NUL and lone surrogates, which databases refuse: they are stored as U+001A and four hexadecimal
digits, as is U+001A itself; a store decodes them."""
