"""Links kept alive: connecting and reconnecting, the topology declared on them, vhosts."""
