"""What holds for all tests."""

from __future__ import annotations

import signal

# A shell starts background jobs with Ctrl-C ignored, and all that they start inherits it: the tests
# that interrupt a command would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
