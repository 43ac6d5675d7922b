"""The command line: `main` lists all commands, `commands` has a module per group, `views` prints results.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unreachable, 6 timed out."""
