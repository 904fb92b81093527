"""Text to tree: `route.tatsu` is the grammar, `route_parser` is generated from it, `parsing` makes the nodes."""
