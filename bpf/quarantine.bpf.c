/* The network of a control group that is cut off: packets of its sockets, in both directions and of connections that exist
 * already, pass between it and the networks that are allowed, and no others. What cannot be read does not pass.
 *
 * Each control group has programs and a table of its own, which are filled before the programs are attached.
 */
#include "kernel.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Of include/uapi/linux/bpf.h: the context, whose layout is fixed. */
struct __sk_buff {
	u32 before_protocol[4];
	u32 protocol;
};

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define ADDRESS_BITS 128
#define MAPPED __builtin_bswap32(0xffff)
#define NETWORKS 1024

/* An address in the form of IPv6; IPv4 is mapped into it. */
struct address {
	u32 bits;
	u32 word[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, NETWORKS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(key_size, sizeof(struct address));
	__uint(value_size, sizeof(u32));
} allowed SEC(".maps");

static __always_inline int is_allowed(struct __sk_buff *skb, u32 at4, u32 at6)
{
	struct address peer = { ADDRESS_BITS, { 0, 0, MAPPED, 0 } };

	if (skb->protocol == __builtin_bswap16(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, at4, &peer.word[3], sizeof(peer.word[3])))
			return 0;
	} else if (skb->protocol != __builtin_bswap16(ETH_P_IPV6) ||
		   bpf_skb_load_bytes(skb, at6, peer.word, sizeof(peer.word))) {
		return 0;
	}
	return bpf_map_lookup_elem(&allowed, &peer) != 0;
}

/* By the destination. */
SEC("cgroup_skb/egress")
int leaving(struct __sk_buff *skb)
{
	return is_allowed(skb, 16, 24);
}

/* By the source. */
SEC("cgroup_skb/ingress")
int arriving(struct __sk_buff *skb)
{
	return is_allowed(skb, 12, 8);
}
