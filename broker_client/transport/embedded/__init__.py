"""Links to a node in this process: the only place where client and broker meet."""
