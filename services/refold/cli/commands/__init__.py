"""One module a command group: reads its arguments, calls the client or a service, leaves printing to `views`."""
