"""The command line. Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unreachable, 6 timed out."""
