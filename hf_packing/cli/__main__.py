"""`python -m hf_packing.cli`, for a checkout that is not installed."""

import sys

from . import main


sys.exit(main())
