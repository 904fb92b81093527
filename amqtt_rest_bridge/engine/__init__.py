"""What the bridge does with messages and requests, whatever broker and network are around it. One event loop.

`needs` has all that the engine is handed from outside: it opens no socket and no file, and reads no clock of its own.
`client_mode` is the door for messages; what becomes of one is read from top to bottom in `call`.
"""
