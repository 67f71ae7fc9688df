# SPDX-License-Identifier: Apache-2.0
"""Exceptions of Shoal. A message states the call, the value, the allowed range and the setting."""

from __future__ import annotations

import builtins


class Error(RuntimeError):
    """The base class of all errors of Shoal. Programs test `code`; the message is for people."""

    code = "error"


class InvalidArgumentError(Error, ValueError):
    """A value is outside its limits. Nothing was sent, and the object stays usable."""

    code = "invalid_argument"


class ExhaustedError(Error):
    """Memory or slots that a setting limits are exhausted."""

    code = "exhausted"


class TimeoutError(Error, builtins.TimeoutError):
    """A deadline passed. The message names the waiting PE, the PE it waited for and the phase."""

    code = "timeout"


class PeerFailedError(Error):
    """Another PE ended, closed its connection or reported an error."""

    code = "peer_failed"


class MismatchError(Error):
    """PEs differ in a value that must be equal on all of them."""

    code = "mismatch"


class UnsupportedError(Error):
    """The call is valid, but this build, machine or pair of PEs does not support it."""

    code = "unsupported"


class SystemFailureError(Error):
    """The operating system or the GPU driver failed; the message has its reason."""

    code = "system"


class ClosedError(Error):
    """The world, group or handle was closed, or has failed, before the call."""

    code = "closed"


_CLASSES = {cls.code: cls for cls in Error.__subclasses__()}


def by_code(code: str) -> type[Error]:
    """The class for the code of a shoal::Error."""
    return _CLASSES.get(code, Error)
