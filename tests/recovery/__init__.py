"""What real faults have found, as small tests: services fed by hand, at the very boundary where they went wrong."""
