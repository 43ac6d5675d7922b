"""API of agent authors: an app, its tools and agents, and the context through which an agent acts on the world."""
