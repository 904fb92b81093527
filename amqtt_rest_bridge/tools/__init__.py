"""Tools around the bridge: an editor's language server, the playground, and the commands of Coreflux's own tools."""
