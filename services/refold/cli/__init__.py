"""The command line: `main` lists all commands, `commands` has a module for each group, `views` what they print.

How a function becomes a command is in `groups`, the options that commands share are in `options`; `platform` has what
they do alike: reach a platform, read a value, tell what was found, and fail.

Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unreachable, 6 timed out; `errors` has the table. Every
read takes `--json`. A module of `commands` is loaded when one of its commands is called, so that `refold --help` is
quick and a service loads no other one."""
