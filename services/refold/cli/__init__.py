"""The command line: `main` lists all commands, `commands` has a module per group, `views` prints results.

`groups` turns functions into commands, `options` has the shared options; `platform` has the shared actions: connect to
a platform, read a value, print a result, and fail. Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5
unreachable, 6 timed out; `errors` has the table. Every read takes `--json`. A module of `commands` is loaded on the
first call of one of its commands, so that `refold --help` is quick and a service loads only its own."""
