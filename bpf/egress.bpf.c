/* Addresses that the programs of a container do not reach: programs at the container's control group, for kernels without
 * BPF LSM. Whatever has the control group, or one below it, is asked: threads, sessions, io_uring.
 *
 * TCP and UDP are decided where a process names the address, so that the call fails with EPERM. Other protocols, and the
 * first packet of each TCP connection, are decided by the packet: raw sockets, SCTP, and whatever connects by another way.
 * Everything that cannot be read is denied.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Of include/uapi/linux/bpf.h: contexts, whose layout is fixed. */
struct bpf_sock {
	u32 bound_dev_if;
	u32 family;
	u32 type;
	u32 protocol;
	u32 mark;
	u32 priority;
	u32 src_ip4;
	u32 src_ip6[4];
	u32 src_port;
	__be16 dst_port;
	u16 : 16;
	u32 dst_ip4;
	u32 dst_ip6[4];
	u32 state;
	s32 rx_queue_mapping;
};

struct bpf_sock_addr {
	u32 user_family;
	u32 user_ip4;
	u32 user_ip6[4];
	u32 user_port;
	u32 family;
	u32 type;
	u32 protocol;
	u32 msg_src_ip4;
	u32 msg_src_ip6[4];
	struct bpf_sock *sk __attribute__((aligned(8)));
};

struct __sk_buff {
	u32 before_sk[42];
	struct bpf_sock *sk __attribute__((aligned(8)));
};

#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define TCP 6
#define UDP 17
#define DCCP 33
#define SCTP 132
#define UDP_LITE 136

/* Ranges of ports in one entry. */
#define RANGES 16
#define ADDRESS_BITS 128
#define MAPPED __builtin_bswap32(0xffff)
#define LOOPBACK __builtin_bswap32(0x7f000001)
#define ONE __builtin_bswap32(1)

/* An address in the form of IPv6; IPv4 is mapped into it. */
struct address {
	u32 bits;
	u32 word[4];
};

/* What is denied at an address: its ports, or all of them. The entry of a longer prefix has the ranges of all shorter ones
 * that contain it. */
struct denied {
	u16 first[RANGES];
	u16 last[RANGES];
	u32 ranges;
	u32 is_all;
};

struct prefixes {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, sizeof(struct address));
	__uint(value_size, sizeof(struct denied));
};

/* One entry: the version of the policy that is in force. A change puts a new table in its place. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, u32);
	__array(values, struct prefixes);
} rules SEC(".maps");

/* How often something was denied. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} denials SEC(".maps");

/* What is known of the port: its number, that there is none, or that it cannot be told. */
#define NO_PORT 0x10000
#define UNKNOWN_PORT 0x20000

static __noinline int is_denied(u32 one, u32 two, u32 three, u32 four, u32 port)
{
	struct address at = { ADDRESS_BITS, { one, two, three, four } };
	struct denied *found;
	void *table;
	u32 zero = 0;

	table = bpf_map_lookup_elem(&rules, &zero);
	if (!table)
		return 1;
	found = bpf_map_lookup_elem(table, &at);
	if (!found)
		return 0;
	if (found->is_all || port == UNKNOWN_PORT)
		return 1;
	for (u32 i = 0; i < RANGES; i++)
		if (i < found->ranges && port >= found->first[i] && port <= found->last[i])
			return 1;
	return 0;
}

static __always_inline int is_denied4(u32 address, u32 port)
{
	return is_denied(0, 0, MAPPED, address, port);
}

/* What a hook returns: 1 lets go on. */
static __always_inline int answer(int denied)
{
	u32 zero = 0;
	u64 *count;

	if (!denied)
		return 1;
	count = bpf_map_lookup_elem(&denials, &zero);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}

static __always_inline u32 port_of(struct bpf_sock_addr *ctx)
{
	return __builtin_bswap16((u16)ctx->user_port);
}

/* Of an address that is all zero the kernel makes one of this machine: the loopback's, or the one that the socket is bound
 * to. Of a socket that is bound to a device, or of a datagram, which may name one, it is not known which. */
static __always_inline int is_denied_here(struct bpf_sock_addr *ctx, u32 port)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk || sk->bound_dev_if)
		return 1;
	if (is_denied4(LOOPBACK, port) || is_denied(0, 0, 0, ONE, port))
		return 1;
	if (sk->src_ip4 && is_denied4(sk->src_ip4, port))
		return 1;
	return (sk->src_ip6[0] | sk->src_ip6[1] | sk->src_ip6[2] | sk->src_ip6[3]) &&
	       is_denied(sk->src_ip6[0], sk->src_ip6[1], sk->src_ip6[2], sk->src_ip6[3], port);
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	u32 address = ctx->user_ip4, port = port_of(ctx);

	return answer(is_denied4(address, port) || (!address && is_denied_here(ctx, port)));
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	u32 address = ctx->user_ip4;

	return answer(!address || is_denied4(address, port_of(ctx)));
}

/* An address of IPv6 that is all zero, or that of IPv4 in it. */
static __always_inline int is_unspecified(u32 one, u32 two, u32 three, u32 four)
{
	return !(one | two | four) && (!three || three == MAPPED);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	u32 one = ctx->user_ip6[0], two = ctx->user_ip6[1], three = ctx->user_ip6[2], four = ctx->user_ip6[3];
	u32 port = port_of(ctx);

	return answer(is_denied(one, two, three, four, port) ||
		      (is_unspecified(one, two, three, four) && is_denied_here(ctx, port)));
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	u32 one = ctx->user_ip6[0], two = ctx->user_ip6[1], three = ctx->user_ip6[2], four = ctx->user_ip6[3];

	if (is_unspecified(one, two, three, four))
		return answer(1);
	return answer(is_denied(one, two, three, four, port_of(ctx)));
}

/* Whether a protocol has the port of the destination in its third and fourth byte. */
static __always_inline bool has_ports(u32 protocol)
{
	return protocol == TCP || protocol == UDP || protocol == DCCP || protocol == SCTP || protocol == UDP_LITE;
}

/* The port in what an IP packet carries. */
static __always_inline u32 port_in(struct __sk_buff *skb, u32 protocol, u32 at, bool is_part)
{
	__be16 port;

	if (!has_ports(protocol))
		return NO_PORT;
	/* Parts of a packet have no port, but the first one. */
	if (is_part || bpf_skb_load_bytes(skb, at + 2, &port, sizeof(port)))
		return UNKNOWN_PORT;
	return __builtin_bswap16(port);
}

/* `is_checked`: options that lead elsewhere were checked where the address was named. */
static __always_inline int is_denied_packet4(struct __sk_buff *skb, u8 first, bool is_checked)
{
	u32 header = (first & 0xf) * 4, address;
	__be16 part;
	u8 protocol;

	/* Options may name another destination. */
	if (header < 20 || (header > 20 && !is_checked))
		return 1;
	if (bpf_skb_load_bytes(skb, 6, &part, sizeof(part)) || bpf_skb_load_bytes(skb, 9, &protocol, sizeof(protocol)) ||
	    bpf_skb_load_bytes(skb, 16, &address, sizeof(address)))
		return 1;
	return is_denied4(address, port_in(skb, protocol, header, part & __builtin_bswap16(0x1fff)));
}

/* Whether what follows the header of IPv6 is another header, and not a protocol. */
static __always_inline bool is_extension(u32 protocol)
{
	return protocol == 0 || protocol == 43 || protocol == 44 || protocol == 51 || protocol == 60 || protocol == 135 ||
	       protocol == 139 || protocol == 140;
}

static __always_inline int is_denied_packet6(struct __sk_buff *skb, bool is_checked)
{
	u32 word[4], port;
	u8 next;

	if (bpf_skb_load_bytes(skb, 6, &next, sizeof(next)) || bpf_skb_load_bytes(skb, 24, word, sizeof(word)))
		return 1;
	/* A header of routing names another destination. */
	if (next == 43 && !is_checked)
		return 1;
	port = is_extension(next) ? UNKNOWN_PORT : port_in(skb, next, 40, false);
	return is_denied(word[0], word[1], word[2], word[3], port);
}

/* Whether a packet of a TCP socket begins no connection. */
static __always_inline bool goes_on(struct __sk_buff *skb, u8 first)
{
	u32 at = (first & 0xf) * 4;
	u8 flags, next;

	if (first >> 4 == 6) {
		/* Where the flags are is not known behind other headers. */
		if (bpf_skb_load_bytes(skb, 6, &next, sizeof(next)) || next != TCP)
			return false;
		at = 40;
	}
	/* SYN without ACK begins one. */
	return !bpf_skb_load_bytes(skb, at + 13, &flags, sizeof(flags)) && (flags & 0x12) != 0x02;
}

SEC("cgroup_skb/egress")
int egress(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	bool is_tcp = false;
	u8 first;

	if (!sk)
		return answer(1);
	sk = bpf_sk_fullsock(sk);
	if (!sk || bpf_skb_load_bytes(skb, 0, &first, sizeof(first)))
		return answer(1);
	if (sk->type == SOCK_DGRAM && sk->protocol == UDP)
		return 1;
	if (sk->type == SOCK_STREAM && sk->protocol == TCP) {
		if (goes_on(skb, first))
			return 1;
		is_tcp = true;
	}
	switch (first >> 4) {
	case 4:
		return answer(is_denied_packet4(skb, first, is_tcp));
	case 6:
		return answer(is_denied_packet6(skb, is_tcp));
	}
	return answer(1);
}
