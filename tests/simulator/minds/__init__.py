"""Agents that think, in the simulator: models that err, loop, flood and obey strangers, and what holds then."""
