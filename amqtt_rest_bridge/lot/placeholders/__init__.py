"""Placeholders: texts with `{...}`, parsed once at load and filled per message or request. Pure; any thread.

`kinds` has the table of placeholders, `text` parses, escapes and fills, `values` reads messages and requests,
`conditions` judges WHEN. A value never changes the shape of the text around it.
"""
