"""Views in SQLite or Postgres: tables of generations, under stable names for users' queries.

`opening` takes a URL, `database` has generations and their rows, `statements` their SQL; `sqlite` and `postgres` have
the differences.

**Threads** One thread writes a generation, any may read: each call borrows a connection, a scan or snapshot until it
ends. Readers see the commits before their start, and block nothing.

**Texts** with NUL or lone surrogates, which databases refuse, are stored with U+001A and four hexadecimal digits in
their place, as is U+001A itself.
"""
