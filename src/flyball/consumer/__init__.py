"""Receive messages from a broker and hold a goal by the number of messages in flight.

consumer         `Consumer`: receives, calls handlers, acknowledges, and carries out what the policy decides
subscription     what is read: a queue, or a channel as a member of a group
dispatcher       calls the handler, repeats after failures, acknowledges
handler          what a handler may be, and how it is called; handler_threads runs those that are not asynchronous
window_loop      the loop of a goal: from what is measured in a second to the window, whichever host drives it
receiver_window  its host in a `Consumer`: sets the receiver's window, reads the depth of the queue
external         its host in programs that keep their own client: `regulate` for pika and confluent-kafka
policy           every decision, pure; the twin runs the same
tune             finds the model of a running consumer, and controllers for it
"""
