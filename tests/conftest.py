# SPDX-License-Identifier: Apache-2.0
"""Settings that all tests need, whatever the shell passes on."""

import os
import signal

# A shell starts a background job with SIGINT ignored. Children inherit that, and Python raises no
# KeyboardInterrupt then.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Some tests read what compilers and other programs print. LC_ALL keeps choosing the format of
# numbers.
os.environ["LANGUAGE"] = "en"
