# SPDX-License-Identifier: Apache-2.0
"""Exceptions of Shoal. A message states the call, the value, the allowed range and the setting."""

from __future__ import annotations

import builtins
import re


class Error(RuntimeError):
    """The base class of all errors of Shoal. Programs test `code`; the message is for people.

    Messages of the core begin with an id, such as SHOAL-N170; `shoal-info --explain N170` prints
    its cause and cure.
    """

    code = "error"

    @property
    def id(self) -> str | None:
        """The first id in the message, such as "SHOAL-N170"; None without any."""
        found = re.search(r"\bSHOAL-N\d+", str(self))
        return found and found[0]

    def late_pe(self) -> str:
        """The PE for which the call waited, such as "PE 2"; "another PE" where it is not named."""
        found = re.search(r"\b(PE \d+)(?= last reported|: \w)", str(self))
        return found[1] if found else "another PE"

    def also(self, text: str) -> Error:
        """The same error with a text behind its message."""
        return type(self)(f"{str(self).rstrip('.')}; {text}")


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


# C++ names in the messages of the core, and what Python calls the same.
_NAMES = [
    (r"\bSymmetricHeap::share_buffer\b", "World.share_buffer"),
    (r"\bheap\(\)\.(share_buffer|unshare_buffer)\b", r"World.\1"),
    (r"\b(?:SymmetricHeap::|heap\(\)\.|heap\.)free\b", "SymmetricArray.free"),
    (r"\b(?:SymmetricHeap::|heap\(\)\.|heap\.)(?:malloc|calloc|align|allocate)\b", "World.zeros"),
    (r"\bexchange_bytes\b", "Team.exchange"),
    (r"^(\S+: )(?:shoal::)?(?:ep::)?GroupOptions[.:]+(?=\S)", r"\1ep.Group: "),
    (r"^(\S+: )(?:shoal::)?(?:ep::)?GateOptions[.:]+(?=\S)", r"\1gate: "),
    (r"\b(?:shoal::)?(?:ep::)?GroupOptions(?![.:]+\S)", "ep.Group"),
    (r"\b(?:shoal::)?(?:ep::)?(?:\w*Options|Launch)(?:::|\.)(?=\S)", ""),
    (r"\b(?:shoal::)?ep::(?=\w)", "ep."),
    (r"\bshoal::(?=\w)", "shoal."),
    (r"\b([A-Z]\w*)::(?=\w)", r"\1."),
    (r" = true\b", " = True"),
    (r" = false\b", " = False"),
]
_PATTERNS = [(re.compile(pattern), replacement) for pattern, replacement in _NAMES]


def python_names(message: str) -> str:
    """The message of an error of the core, with Python's names in place of C++'s."""
    for pattern, replacement in _PATTERNS:
        message = pattern.sub(replacement, message)
    return message


def from_core(code: str, message: str) -> Error:
    """The exception for a shoal::Error."""
    return by_code(code)(python_names(message))


def by_code(code: str) -> type[Error]:
    """The class for the code of a shoal::Error."""
    return _CLASSES.get(code, Error)
