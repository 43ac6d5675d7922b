"""The parts of the planner by themselves; the whole of it is what the simulator runs."""
