"""The route language: text, tree, route; every fault of every file is reported at once, with line and column.

- *Text* (`Source`): a file or the cell of a notebook, which `sources` reads.
- *Tree* (`Definition`, of `Block`s with their settings as written): `grammar` parses a text by `route.tatsu`, `blocks`
  and `definitions` check the place of each statement. It depends on the text only, so that a reload keeps it.
- *Route*: `evaluation` joins and converts settings, `texts` parses texts with placeholders and conditions, `routes`
  makes configuration and events, `loader` compares the routes of all files.

`parameters` has one row for each setting. Faults ask `hints` what was meant.
"""
