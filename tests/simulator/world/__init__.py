"""The world that the services run in: processes, people, tools, a receiver, a broker, time and faults."""
