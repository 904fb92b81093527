"""Workers that share the work: who holds which slot of the group, and the sessions of the slots that one holds.

`leases` decides who holds which slot, by what workers announce. `slots` has the sessions of the slots that are open,
`sessions` the worker's own; `member` puts these together. `overview` is the group as `rest-bridge status --group` shows
it, `probe` tries on a broker what workers need, `commands` takes Coreflux's commands on one worker of the group.
`plugin_member` is the bridge of the plugin, without a group.
"""
