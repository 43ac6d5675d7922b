"""The code of agents: run along its history, held where it does not go with that, and watched."""
