"""Commands that look at a running bridge, or send it failed messages again: by its admin port, or by its broker."""
