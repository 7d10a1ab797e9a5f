"""Brings messages to a broker.

publisher       the face: accepts messages durably and brings them to one or several brokers; sync is the face for
                threads, http the one over HTTP
options         groups of options, and which of them fit together
handle          one accepted message, and the queue in which messages wait for a target
intake          the receive side: groups messages for the outbox, and decides what happens when it is full
outbox          the outbox of a publisher, in a file or in memory; dead_letters: what targets refused, in memory
relay           which messages are in memory, which in the outbox only, and which are done
target_sender   one target: carries out what the policy decides; connections: what the targets at one broker share
policy          every decision, pure: when a batch leaves, how large it is, when to look again
receipts        keeps confirmed messages until a consumer's delivery receipt; unreceipted is where they wait
feed            a numbered sequence of events → a log, each exactly once, continuing where an earlier run stopped
"""
