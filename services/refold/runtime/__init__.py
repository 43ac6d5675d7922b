"""What every service is run with: its host, settings, logs, signals, children that die with it, and fault points."""
