"""`rest-bridge install`: fetch the routes of a published template, check them, and write them into a folder."""
