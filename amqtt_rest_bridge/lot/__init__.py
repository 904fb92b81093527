"""The route language: text, tree, route; every fault of every file is reported at once, with line and column.

- *Text* (`Source`): a file or the cell of a notebook, which `sources` reads.
- *Tree* (`Definition`, of `Block`s with their settings as written): `grammar` parses a text to statements by
  `route.tatsu`, `parsed_texts` and `definitions` put each in its place, and read on after a mistake. The tree depends
  on the text only, so that a reload keeps it.
- *Route*: `evaluation` joins and converts settings, `texts` parses texts with placeholders, `condition_reader` WHEN,
  `blocks` makes the model, `loader` compares the routes of all files, `loops` warns of events that lead back.

`settings_table` has one row for each setting. Faults ask `hints` what was meant. `masking` keeps secrets out of all
that is shown, `secret_search` finds them. `route_set` tells what follows from all routes, `writer` and `reference`
write routes and settings as texts.
"""
