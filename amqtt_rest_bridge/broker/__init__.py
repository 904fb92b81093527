"""The broker process: matching, admission and paced publishing. Nothing here speaks HTTP."""
