"""What comes to a lane: its inputs, timers, and what waits for something."""
