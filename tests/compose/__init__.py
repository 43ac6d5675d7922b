"""`docker compose up`, by its commands. Needs Docker: run by make compose, not by make test."""
