"""Views in SQLite or Postgres: tables of generations, and names of their own for those who query them.

`opening` takes a URL, `database` keeps generations, `store` writes the rows of one, `statements` holds its SQL;
`sqlite` and `postgres` are what differs. Rows go through the driver, a batch at a time; SQLAlchemy makes tables, keeps
connections, and judges errors.

**Threads** One thread writes a generation. Any thread may read: each call takes a connection out of a pool for as long
as it lasts, a scan or a snapshot until it ends. Readers see what was committed when they began, and hold nobody up.

**Texts** may contain what databases refuse: NUL and lone surrogates. They lie there as U+001A and four hexadecimal
digits, and so does U+001A itself; a store gives them back as they were."""
