"""Tools around the bridge: an editor's language server, the playground, and the original's commands."""
