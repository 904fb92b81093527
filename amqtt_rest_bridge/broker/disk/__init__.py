"""The spool of lossless routes: messages on disk until their calls have ended. SQLite lives here only."""
