"""Workers that share the work: who holds which slot of the group, and the sessions of the slots that one holds.

`records` are what workers publish about themselves, `leases` decides who holds which slot, `slots` has the sessions of
a slot, `member` puts these together for one worker. `overview` is the group as `rest-bridge status --group` shows it,
`probe` tries on a broker what workers need, `commands` takes Coreflux's commands on one worker of the group.
"""
