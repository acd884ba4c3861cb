"""Runs a program that may call only what is named: a filter of system calls as systemd makes it, without systemd.

    python confined.py CALL,CALL,… PROGRAM [ARGUMENT …]

Any other call fails with EPERM, as the unit asks for.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

ALLOW = 0x7FFF0000
FAIL_WITH_EPERM = 0x00050000 | errno.EPERM
UNKNOWN = -1  # a name that this architecture, or this libseccomp, does not have


def confine(calls: list[str]) -> None:
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_rule_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint]
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    rules = library.seccomp_init(FAIL_WITH_EPERM)
    for call in calls:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number != UNKNOWN:
            library.seccomp_rule_add(rules, ALLOW, number, 0)
    if library.seccomp_load(rules):
        raise SystemExit("the filter could not be loaded")


if __name__ == "__main__":
    confine(sys.argv[1].split(","))
    os.execv(sys.argv[2], sys.argv[2:])
