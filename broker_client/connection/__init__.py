"""Keeps links alive: connects and reconnects, declares the topology; vhosts."""
