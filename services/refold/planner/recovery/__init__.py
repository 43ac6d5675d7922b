"""How a lane comes to know its partition, and histories that are read once more."""
