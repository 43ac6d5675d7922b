"""What happens in a case: scenarios, calls, questions, inputs, and the schedules of faults."""
