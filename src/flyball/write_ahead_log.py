"""SQLite's write-ahead log: readers and the writer of a file do not wait for each other."""

from __future__ import annotations

import sqlite3
import time

from flyball.backoff import ENDLESS, delays_s


def use_write_ahead_log(connection: sqlite3.Connection, wait_s: float) -> None:
    """Change the file to it, unless it is changed already; wait for others that change it at the same time.

    SQLite does not wait here: it answers "locked" at once, whatever the connection's time-out.
    """
    deadline = time.monotonic() + wait_s
    for delay_s in delays_s(ENDLESS, first_s=0.002, longest_s=0.02):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            if time.monotonic() > deadline:
                raise
            time.sleep(delay_s)
        else:
            return
