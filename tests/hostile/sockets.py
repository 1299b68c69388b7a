# expect: failed
import socket
from contextlib import suppress

gained = []
families = ("AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "AF_BLUETOOTH")
for family in (getattr(socket, name) for name in families if hasattr(socket, name)):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        with suppress(OSError):
            gained.append(socket.socket(family, kind))
