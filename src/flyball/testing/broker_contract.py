"""The one contract suite that every broker adapter passes, unchanged, against its real server.

Subclass it in a test module and say where the broker is:

    class TestMine(BrokerContract):
        def url(self) -> str:
            return "sqlite:///mine.db"

pytest then runs every promise of `flyball.brokers.port`. What a broker cannot do is skipped by its
`capabilities`, with the reason, never by its name. Only what must hold everywhere is asked: order within a
partition, not across; offsets that grow, not that are dense; the same id on repeats, not that there are none
after a crash.
"""

from __future__ import annotations

from flyball.testing.contract.administration import Administration
from flyball.testing.contract.foreign import Foreign
from flyball.testing.contract.groups import Groups
from flyball.testing.contract.logs import Logs
from flyball.testing.contract.messages import assert_same, fresh_name, ids, numbered, odd_messages, records
from flyball.testing.contract.sending import Sending
from flyball.testing.contract.settling import Settling
from flyball.testing.contract.window import Window

__all__ = ["BrokerContract", "assert_same", "fresh_name", "ids", "numbered", "odd_messages", "records"]


class BrokerContract(Sending, Settling, Window, Groups, Logs, Foreign, Administration):
    """All tests of the port; `contract.base.ContractBase` has the hooks that a subclass may set."""
