"""The planner and its parts by themselves, on the memory log: what they do with what comes, and when."""
