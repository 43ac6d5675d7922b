"""Run-time support of services: host, settings, logs, signals, children that die with their parent, fault points."""
