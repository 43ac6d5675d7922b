"""The console: tables that the run log fills, and all that people and programs see of them.

`projections` makes rows, `sql` keeps them, `gateway` serves them over HTTP, `pages` in a browser; `telemetry` exports
traces and `insights` live figures. Nothing that decides or acts imports this package.
"""
