"""What a bridge is run by: children, supervised tasks, reloads of route files, the control socket of the plugin."""
