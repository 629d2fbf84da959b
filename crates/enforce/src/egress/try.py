"""Tries every way to reach an address, and says for each whether it was denied.

try.py ADDRESS PORT: the address is one of this network. A line for each way: its name, and `denied` (EPERM), `missing` (the
kernel or the address has no such way), or what came of it.
"""
import ctypes
import errno
import socket
import struct
import sys

address, port = sys.argv[1], int(sys.argv[2])
is_six = ":" in address
family = socket.AF_INET6 if is_six else socket.AF_INET
is_none = address in ("0.0.0.0", "::", "::ffff:0.0.0.0")
# Raw packets do not go to the address that is none: nobody has it.
MPTCP, UDP_LITE, SCTP, DCCP, FAST_OPEN = 262, 136, 132, 33, 0x20000000
MISSING = {errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT, errno.ENOPROTOOPT, errno.EOPNOTSUPP, errno.EAFNOSUPPORT}


def say(name, way, *rest):
    try:
        way(*rest)
        result = "done"
    except OSError as error:
        if error.errno == errno.EPERM:
            result = "denied"
        elif error.errno in MISSING:
            result = "missing"
        else:
            result = errno.errorcode.get(error.errno, str(error.errno))
    print(name, result, flush=True)


def made(*kind, of=None):
    made = socket.socket(of or family, *kind)
    made.settimeout(1)
    return made


def connect(kind, protocol=0):
    with made(kind, protocol) as one:
        one.connect((address, port))


def non_blocking():
    with made(socket.SOCK_STREAM) as one:
        one.setblocking(False)
        try:
            one.connect((address, port))
        except BlockingIOError:
            pass


def fast_open():
    with made(socket.SOCK_STREAM) as one:
        one.sendto(b"x", FAST_OPEN, (address, port))


def send(kind, protocol=0):
    with made(kind, protocol) as one:
        one.sendto(b"x", (address, port))


def send_message():
    with made(socket.SOCK_DGRAM) as one:
        one.sendmsg([b"x"], [], 0, (address, port))


def send_many():
    """sendmmsg(2), which Python lacks."""
    with made(socket.SOCK_DGRAM) as one:
        name = (struct.pack("=H", family) + struct.pack("!H", port)
                + ((b"\0" * 4 + socket.inet_pton(family, address) + b"\0" * 4) if is_six
                   else socket.inet_pton(family, address) + b"\0" * 8))
        name = ctypes.create_string_buffer(name, len(name))
        data = ctypes.create_string_buffer(b"x")
        vector = (ctypes.c_uint64 * 2)(ctypes.addressof(data), 1)
        header = struct.pack("=QIIQQQQII", ctypes.addressof(name), len(name) , 0, ctypes.addressof(vector), 1, 0, 0, 0, 0)
        message = ctypes.create_string_buffer(header + b"\0" * 8, 64)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.sendmmsg(one.fileno(), message, 1, 0) < 0:
            raise OSError(ctypes.get_errno(), "sendmmsg")


def mapped(kind, connects):
    """An address of IPv4 from a socket of IPv6."""
    with made(kind, of=socket.AF_INET6) as one:
        target = ("::ffff:" + address, port)
        one.connect(target) if connects else one.sendto(b"x", target)


def without_family():
    """Sending to an address without a family is sending to IPv4."""
    with made(socket.SOCK_DGRAM) as one:
        name = struct.pack("=H", 0) + struct.pack("!H", port) + socket.inet_pton(family, address) + b"\0" * 8
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.sendto(one.fileno(), b"x", 1, 0, name, len(name)) < 0:
            raise OSError(ctypes.get_errno(), "sendto")


def again():
    """A connected socket that is connected elsewhere."""
    with made(socket.SOCK_DGRAM) as one:
        one.connect(("2001:db8::2" if is_six else "192.0.2.2", 9))
        one.connect((address, port))


def on_device():
    with made(socket.SOCK_DGRAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        one.connect((address, port))


def ping(kind, protocol):
    with made(kind, protocol) as one:
        echo = 128 if is_six else 8
        one.settimeout(0.3)
        one.sendto(struct.pack("!BBHHH", echo, 0, 0xf7ff if not is_six else 0, 0, 0), (address, 0))
        try:
            one.recv(100)
        except TimeoutError:
            # The kernel drops a denied question of IPv6, and says nothing.
            raise PermissionError(errno.EPERM, "no answer")


def raw(protocol, data):
    """A packet of another protocol, made by hand behind the header of IP."""
    with made(socket.SOCK_RAW, protocol) as one:
        one.sendto(data, (address, 0))


def part(offset, options=b""):
    """A packet with a header that is made by hand: a part of one, or one with options."""
    with made(socket.SOCK_RAW, socket.IPPROTO_RAW) as one:
        length = 20 + len(options)
        header = struct.pack("!BBHHHBBH4s4s", 0x40 | length // 4, 0, length + 8, 1, offset, 64, socket.IPPROTO_UDP, 0,
                             socket.inet_aton("192.0.2.2"), socket.inet_aton(address))
        one.sendto(header + options + ports + b"\0\x08\0\0", (address, 0))


# An address that is not the one, also of this network.
other = "2001:db8::2" if is_six else "192.0.2.2"


def routed(kind, by_message):
    """Named is another address, and options lead by the one."""
    with made(kind) as one:
        if is_six:
            # A header of segments: the last address, and the one before it.
            segments = socket.inet_pton(family, other) + socket.inet_pton(family, address)
            level, option = socket.IPPROTO_IPV6, 57
            value = struct.pack("!BBBBBBH", 0, 4, 4, 1, 1, 0, 0) + segments
        else:
            level, option = socket.IPPROTO_IP, 4
            value = struct.pack("!BBB4sB", 131, 7, 4, socket.inet_aton(address), 0)
        if by_message:
            one.sendmsg([b"x"], [(level, 7 if not is_six else option, value)], 0, (other, port))
            return
        one.setsockopt(level, option, value)
        if kind == socket.SOCK_DGRAM:
            one.sendto(b"x", (other, port))
            return
        one.settimeout(0.3)
        try:
            one.connect((other, port))
        except TimeoutError:
            # The kernel drops a denied beginning, and says nothing.
            raise PermissionError(errno.EPERM, "no answer")


def with_options():
    """A connected socket that sends with options: no address is named."""
    with made(socket.SOCK_DGRAM) as one:
        one.connect((address, port))
        level, option = (socket.IPPROTO_IPV6, 67) if is_six else (socket.IPPROTO_IP, 1)
        one.sendmsg([b"x"], [(level, option, struct.pack("=i", 0x10))])


ports = struct.pack("!HH", 1, port)
tcp = ports + struct.pack("!IIBBHHH", 1, 0, 0x50, 2, 100, 0, 0)
say("tcp", connect, socket.SOCK_STREAM)
say("tcp-later", non_blocking)
say("udp-connect", connect, socket.SOCK_DGRAM)
say("udp", send, socket.SOCK_DGRAM)
say("udp-message", send_message)
say("udp-many", send_many)
say("fast-open", fast_open)
say("mptcp", connect, socket.SOCK_STREAM, MPTCP)
say("on-device", on_device)
if not is_none:
    say("udp-options", with_options)
    say("route-udp", routed, socket.SOCK_DGRAM, False)
    say("route-udp-message", routed, socket.SOCK_DGRAM, True)
    say("route-tcp", routed, socket.SOCK_STREAM, False)
    say("udp-lite", send, socket.SOCK_DGRAM, UDP_LITE)
    say("udp-again", again)
    say("sctp", connect, socket.SOCK_STREAM, SCTP)
    say("ping", ping, socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6 if is_six else socket.IPPROTO_ICMP)
    say("ping-raw", ping, socket.SOCK_RAW, socket.IPPROTO_ICMPV6 if is_six else socket.IPPROTO_ICMP)
    say("raw-udp", raw, socket.IPPROTO_UDP, ports + b"\0\x08\0\0")
    say("raw-tcp", raw, socket.IPPROTO_TCP, tcp)
    say("raw-sctp", raw, SCTP, ports + b"\0" * 8)
    say("raw-dccp", raw, DCCP, ports + b"\0" * 12)
if not is_six:
    say("mapped", mapped, socket.SOCK_STREAM, True)
    say("mapped-udp", mapped, socket.SOCK_DGRAM, False)
    say("mapped-udp-connect", mapped, socket.SOCK_DGRAM, True)
    say("without-family", without_family)
    if not is_none:
        say("by-hand", part, 0)
        say("part", part, 1)
        say("part-options", part, 0, b"\x01\x01\x01\x00")
