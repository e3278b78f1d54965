"""The core, run with a store, a clock and a scan loop.

`node` owns them. `channel_commands` are what transports and servers ask for, `administration` and
`access_control` what operators do; `effect_runner` carries out what the core decides.
"""
