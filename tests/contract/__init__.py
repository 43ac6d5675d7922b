"""One contract suite per port, run on memory and on the real thing."""
