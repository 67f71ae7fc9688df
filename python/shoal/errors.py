# SPDX-License-Identifier: Apache-2.0
"""Exceptions of Shoal. Each message says what was asked, what was got, what is allowed and which setting changes it."""

from __future__ import annotations

import builtins


class Error(RuntimeError):
    """Raised by every call of Shoal that fails. `code` is what programs branch on; people read the message."""

    code = "error"


class InvalidArgumentError(Error, ValueError):
    """A value is outside what the call allows; nothing was sent, and what it was called on stays usable."""

    code = "invalid_argument"


class ExhaustedError(Error):
    """Memory or slots that a setting bounds are used up."""

    code = "exhausted"


class TimeoutError(Error, builtins.TimeoutError):
    """A deadline passed; the message names who waited for whom, in which phase."""

    code = "timeout"


class PeerFailedError(Error):
    """Another PE ended, closed its connection or reported an error of its own."""

    code = "peer_failed"


class MismatchError(Error):
    """PEs disagree about a value that must be the same on all of them."""

    code = "mismatch"


class UnsupportedError(Error):
    """Valid, but this build, machine or pair of PEs cannot do it."""

    code = "unsupported"


class SystemFailureError(Error):
    """The operating system or the GPU driver refused; the message carries its reason."""

    code = "system"


class ClosedError(Error):
    """The world, group or handle was closed before, or has failed."""

    code = "closed"


_CLASSES = {cls.code: cls for cls in Error.__subclasses__()}


def by_code(code: str) -> type[Error]:
    """The class of a code of shoal::Error."""
    return _CLASSES.get(code, Error)
