"""A name for argparse's collection of subparsers, which has none of its own that is public."""

import argparse
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
