"""`rest-bridge test`: the tests beside route files, run by the code of the bridge without broker and network."""
