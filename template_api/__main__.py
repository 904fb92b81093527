"""`python -m template_api` is the command `template-api`."""

import sys

from template_api.cli import main

if __name__ == "__main__":
    sys.exit(main())
