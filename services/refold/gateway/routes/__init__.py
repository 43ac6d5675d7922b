"""The routes, each module those of a subject."""
