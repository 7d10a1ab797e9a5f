"""Brings messages to a broker.

publisher   accepts messages durably and brings them to one or several brokers; sync is its face for threads,
            listen its face over HTTP
policy      every decision, pure: when a batch leaves, how large it is, when to look again
options     which options of a publisher fit together; place is its open outbox, memory_outbox one without a file
intake      the receive side, into the outbox; pool does the store work
backlog     what is in memory and what in the store only; entry is one message on its way
lane        one target: carries out what the policy decides
receipts    keeps confirmed messages until a consumer's receipt; kept is where they wait
feed        a numbered sequence of events → a log, each exactly once, continuing where an earlier run stopped
"""
