"""The broker's decisions, as pure code: commands and the time in, ordered effects out.

`commands/` takes what clients ask for. `transitions` moves messages between ready, in flight,
deferred and gone: a nack with requeue, or with a delay, ends there. `queue` offers messages to
consumers that have room in their prefetch. `dead_lettering` makes dead letters; their header
`x-death` is written by `amqp/x_death`. `effects` and `records` are what comes out.
"""
