/* Addresses that the programs of a container do not reach: programs at the container's control group, for kernels without
 * BPF LSM. They are asked about sockets that were made in the control group, or in one below it: by threads, sessions, io_uring.
 *
 * TCP and UDP are decided where a process names the address, so that the call fails with EPERM. Other protocols, and the
 * first packet of each TCP connection, are decided by the packet: raw sockets, SCTP, and whatever connects by another way.
 * Packets whose header has more than an address, which may lead elsewhere, are denied. Everything that cannot be read is.
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
	u32 before_protocol[4];
	u32 protocol;
	u32 before_sk[37];
	struct bpf_sock *sk __attribute__((aligned(8)));
};

#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define TCP 6
#define UDP 17
#define DCCP 33
#define SCTP 132
#define UDP_LITE 136
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

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
 * to. Of a socket that is bound to a device, or of datagrams, which may name one, it is not known which. */
static __always_inline int is_denied_here(struct bpf_sock_addr *ctx, u32 port)
{
	struct bpf_sock *sk = ctx->sk;

	if (!sk || sk->bound_dev_if || ctx->type != SOCK_STREAM)
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

/* A connected socket asks without an address if its message has options: its peer is meant. A port of zero that is named
 * is refused by the kernel. */
SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	u32 address = ctx->user_ip4, port = port_of(ctx);
	struct bpf_sock *sk = ctx->sk;

	if (!address && !port && sk)
		return answer(!sk->dst_ip4 || is_denied4(sk->dst_ip4, __builtin_bswap16(sk->dst_port)));
	return answer(!address || is_denied4(address, port));
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
	u32 port = port_of(ctx);
	struct bpf_sock *sk = ctx->sk;

	if (!(one | two | three | four) && !port && sk) {
		one = sk->dst_ip6[0];
		two = sk->dst_ip6[1];
		three = sk->dst_ip6[2];
		four = sk->dst_ip6[3];
		port = __builtin_bswap16(sk->dst_port);
	}
	return answer(is_unspecified(one, two, three, four) || is_denied(one, two, three, four, port));
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

/* Of a header without options. */
static __always_inline int is_denied_packet4(struct __sk_buff *skb)
{
	u32 address;
	__be16 part;
	u8 protocol;

	if (bpf_skb_load_bytes(skb, 6, &part, sizeof(part)) || bpf_skb_load_bytes(skb, 9, &protocol, sizeof(protocol)) ||
	    bpf_skb_load_bytes(skb, 16, &address, sizeof(address)))
		return 1;
	return is_denied4(address, port_in(skb, protocol, 20, part & __builtin_bswap16(0x1fff)));
}

static __always_inline int is_denied_packet6(struct __sk_buff *skb, u8 next)
{
	u32 word[4];

	if (bpf_skb_load_bytes(skb, 24, word, sizeof(word)))
		return 1;
	return is_denied(word[0], word[1], word[2], word[3], port_in(skb, next, 40, false));
}

/* Whether what follows the header of IPv6 is another header, and not a protocol. */
static __always_inline bool is_extension(u8 next)
{
	return next == 0 || next == 43 || next == 44 || next == 51 || next == 60 || next == 135 || next == 139 || next == 140;
}

/* Whether a packet of a TCP socket begins no connection: SYN without ACK begins one. */
static __always_inline bool goes_on(struct __sk_buff *skb, u32 at)
{
	u8 flags;

	return !bpf_skb_load_bytes(skb, at + 13, &flags, sizeof(flags)) && (flags & 0x12) != 0x02;
}

SEC("cgroup_skb/egress")
int egress(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	u8 first, next = 0;
	bool is_four;

	if (!sk)
		return answer(1);
	sk = bpf_sk_fullsock(sk);
	if (!sk || bpf_skb_load_bytes(skb, 0, &first, sizeof(first)))
		return answer(1);
	/* A header of IPv4 with options, or one of IPv6 with others behind it: where it leads is not known. */
	is_four = skb->protocol == __builtin_bswap16(ETH_P_IP);
	if (is_four) {
		if (first != 0x45)
			return answer(1);
	} else if (skb->protocol != __builtin_bswap16(ETH_P_IPV6) || first >> 4 != 6 ||
		   bpf_skb_load_bytes(skb, 6, &next, sizeof(next)) || is_extension(next)) {
		return answer(1);
	}
	if (sk->type == SOCK_DGRAM && sk->protocol == UDP)
		return 1;
	if (sk->type == SOCK_STREAM && sk->protocol == TCP && goes_on(skb, is_four ? 20 : 40))
		return 1;
	return answer(is_four ? is_denied_packet4(skb) : is_denied_packet6(skb, next));
}
