"""Commands for those who write route files: first files, checks, layout, explanations, templates of a library."""
