"""Passwords: argon2id, and nothing else knows how.

A hash says which parameters made it, so they can change: what was hashed with others still verifies, and is hashed anew
when its owner signs in. Checking a password always costs one hash, also for somebody who does not exist: how long an
answer takes does not tell who does.

A hash costs tens of milliseconds on purpose, so it is computed where the request runs, never by the writer.
"""

from __future__ import annotations

import threading

import argon2

from tablecast.errors import CorruptData, InvalidRequest

MIN_PASSWORD_CHARS = 8  # what NIST 800-63B asks of a password that a person chooses
MAX_PASSWORD_BYTES = 1024  # far beyond any passphrase; a longer one only costs time

# OWASP's first choice for argon2id on servers. Twice the passes over less memory guards as well as RFC 9106's 64 MiB
# while many sign in at once: after a restart all clients do.
PASSES = 2
MEMORY_KIB = 19 * 1024
LANES = 1
SALT_BYTES = 16
HASH_BYTES = 32

HASHES_AT_ONCE = 8  # bounds their memory to 152 MiB; more wait for their turn

_hasher = argon2.PasswordHasher(PASSES, MEMORY_KIB, LANES, HASH_BYTES, SALT_BYTES, type=argon2.Type.ID)
_turns = threading.BoundedSemaphore(HASHES_AT_ONCE)


def check_password(password: str) -> None:
    """Raises InvalidRequest for one that is too short, too long or not text. The error does not repeat it."""
    if len(password) < MIN_PASSWORD_CHARS:
        raise InvalidRequest(f"the password is too short: it takes at least {MIN_PASSWORD_CHARS} characters")
    if _encoded(password) is None:
        raise InvalidRequest(f"a password is Unicode text of at most {MAX_PASSWORD_BYTES} bytes")


def hash_password(password: str) -> str:
    """What is stored instead of the password."""
    check_password(password)
    with _turns:
        return _hasher.hash(password)


def verify_password(stored: str | None, password: str) -> bool:
    """Whether it is the password behind a hash. None is the hash of nobody: never right, and no faster to tell."""
    encoded = _encoded(password)
    with _turns:
        if stored is None or encoded is None:
            _hasher.hash(b"")
            return False
        try:
            return _hasher.verify(stored, encoded)
        except argon2.exceptions.VerifyMismatchError:
            return False
        except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
            raise CorruptData("a stored password hash is none; ALTER USER … SET PASSWORD makes a new one") from None


def needs_rehash(stored: str) -> bool:
    """Whether other parameters made this hash than would make it now."""
    return _hasher.check_needs_rehash(stored)


def is_hash(stored: str) -> bool:
    try:
        argon2.extract_parameters(stored)
    except argon2.exceptions.InvalidHashError:
        return False
    return True


def _encoded(password: str) -> bytes | None:
    """As bytes; None for what no password can be, so that it is refused like a wrong one."""
    try:
        encoded = password.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return None
    return encoded if len(encoded) <= MAX_PASSWORD_BYTES else None
