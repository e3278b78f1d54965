"""What the pytest plugin gives to tests: a recorder, faults, virtual time, a report of leaks."""
