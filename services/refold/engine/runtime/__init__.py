"""Run-time support of services: host, lanes, settings, logs, signals and supervision of processes."""
