"""The subcommands of `rest-bridge`, one module each: `add_to` describes it to argparse, `run` does it.

`run` gives the exit status; what it prints goes to standard output, what is wrong to standard error.
"""
