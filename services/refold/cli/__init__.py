"""The command line: `main` puts it together, one module per group of commands.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unreachable, 6 timed out; `errors` has the table. Every
read takes `--json`. Commands import what they need when they run, so that `refold --help` is quick.
"""
