"""What the pages of both sites share, the status pages and the template library: their look, and the playground."""
