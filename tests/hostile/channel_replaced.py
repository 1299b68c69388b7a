# expect: exited, timeout, opaque, failed (slow)
# Puts another socket in the place of the channel.
import os
import socket

a, b = socket.socketpair()
os.dup2(a.fileno(), 3)
a.detach()
b.close()
