"""The commands of those who write route files. Main thread."""
