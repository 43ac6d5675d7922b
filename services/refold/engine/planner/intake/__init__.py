"""Input of a lane: its records, timers, and waiting inputs."""
