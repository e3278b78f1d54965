"""The core, run with a store, a clock and a scan loop."""
