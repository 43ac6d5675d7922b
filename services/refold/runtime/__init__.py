"""What every service is run with: its host, settings, logs, fault points, and the export of schemas."""
