//! Lowering of a list of allowed peers.
//!
//! A filter cannot read an address, so `connect` is refused to all, and the process that supervises the
//! workload connects allowed peers in the caller's place. What could reach a peer without `connect` is refused
//! by registers: datagrams, raw sockets, other families and protocols, and TCP fast open.

use abi::{Errno, RegisterTest, Syscall, TestOp};

use super::{Action, CallRule, CompiledPart, TYPE_MASK};
use crate::policy::Rule;
use crate::restriction::AllowedPeer;

/// Families (include/linux/socket.h): Unix, IPv4, IPv6. Netlink stays allowed, too: it reaches the kernel.
const UNIX: u64 = 1;
const INET: [u64; 2] = [2, 10];
/// Ranges of the other families.
const OTHERS: [(u64, u64); 3] = [(3, 9), (11, 15), (17, u32::MAX as u64)];
/// Socket types without connections: `SOCK_DGRAM`, and `SOCK_RAW`, which Unix sockets take for the same.
const DATAGRAMS: [u64; 2] = [2, 3];
/// All types but `SOCK_STREAM`.
const NO_STREAMS: [u64; 5] = [2, 3, 4, 5, 6];
/// Ranges of protocols other than the default and TCP; MPTCP is one.
const NO_TCP: [(u64, u64); 2] = [(1, 5), (7, u32::MAX as u64)];
/// `MSG_FASTOPEN`, and the argument with the flags of each call that sends.
const FAST_OPEN: u64 = 0x2000_0000;
const SENDS: [(Syscall, u8); 3] = [
    (Syscall::SENDTO, 3),
    (Syscall::SENDMSG, 2),
    (Syscall::SENDMMSG, 3),
];

/// Lowers the list. The rules are the same for every list: its entries are for the supervising process.
pub(super) fn lower(rule: &Rule, peers: &[AllowedPeer]) -> CompiledPart<CallRule> {
    if !rule.verdict.denies() {
        return CompiledPart::missing("connections outside of a list cannot be reported only");
    }
    let refused = |call, when| CallRule {
        rule: rule.id.clone(),
        call,
        when,
        action: Action::RefuseAndReport(Errno(13)),
    };
    let mut rules: Vec<CallRule> = vec![refused(Syscall::CONNECT, Vec::new())];
    rules.extend(sockets().map(|when| refused(Syscall::SOCKET, when)));
    let unix = RegisterTest::low(0, TestOp::Eq, UNIX);
    let pairs = DATAGRAMS.map(|kind| refused(Syscall::SOCKETPAIR, vec![unix, has_type(kind)]));
    rules.extend(pairs);
    rules.extend(SENDS.map(|(call, flags)| {
        let opens = RegisterTest::low(flags, TestOp::AnyBit, FAST_OPEN);
        refused(call, vec![opens])
    }));
    let lowered = CompiledPart::many(rules)
        .gap("sockets that the command inherits")
        .breaks("datagrams (UDP), raw sockets and all families but Unix, IPv4, IPv6 and netlink");
    match peers.iter().any(AllowedPeer::has_name) {
        false => lowered,
        true => lowered.gap("other hosts that share the address of an allowed name"),
    }
}

/// Tests for each kind of socket that is refused.
fn sockets() -> impl Iterator<Item = Vec<RegisterTest>> {
    let others = OTHERS.map(|range| within(0, range).to_vec());
    let datagrams = DATAGRAMS.map(|kind| vec![family(UNIX), has_type(kind)]);
    let inet = INET.into_iter().flat_map(|number| {
        let types = NO_STREAMS.map(|kind| vec![family(number), has_type(kind)]);
        let protocols = NO_TCP.map(|range| [&[family(number)][..], &within(2, range)].concat());
        types.into_iter().chain(protocols)
    });
    others.into_iter().chain(datagrams).chain(inet)
}

fn family(number: u64) -> RegisterTest {
    RegisterTest::low(0, TestOp::Eq, number)
}

fn has_type(kind: u64) -> RegisterTest {
    RegisterTest::low(1, TestOp::MaskedEq { mask: TYPE_MASK }, kind)
}

fn within(arg: u8, (first, last): (u64, u64)) -> [RegisterTest; 2] {
    [
        RegisterTest::low(arg, TestOp::Ge, first),
        RegisterTest::low(arg, TestOp::Le, last),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::seccomp::Profile;

    fn profile() -> Profile {
        let text = "policy:\n  enforcer: SeccompLandlock\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                    privileged: true\n    connectRawRules: {only: ['127.0.0.0/8:*']}\n";
        let (policies, problems) = crate::load("p.yaml", text);
        assert!(problems.is_empty(), "{problems:?}");
        Profile::compile(&policies[0])
    }

    #[test]
    fn only_sockets_that_need_a_connect_are_left() {
        let profile = profile();
        let may = |call, args: [u64; 6]| profile.decide(call, &args).is_none();
        let socket =
            |family, kind, protocol| may(Syscall::SOCKET, [family, kind, protocol, 0, 0, 0]);
        const CLOEXEC: u64 = 0o2_000_000;
        for (family, kind) in [(1, 1), (1, 5), (2, 1), (10, 1), (16, 3), (2, 1 | CLOEXEC)] {
            assert!(socket(family, kind, 0), "{family} {kind}");
        }
        assert!(socket(2, 1, 6));
        for (family, kind, protocol) in [
            (1, 2, 0),
            (1, 3, 0),
            (2, 2, 0),
            (2, 2 | CLOEXEC, 17),
            (10, 2, 0),
            (2, 3, 1),
            (2, 1, 132),
            (2, 1, 262),
            (10, 1, 262),
            (17, 3, 0),
            (40, 1, 0),
            (43, 1, 0),
        ] {
            assert!(
                !socket(family, kind, protocol),
                "{family} {kind} {protocol}"
            );
        }
        assert!(!may(Syscall::SOCKETPAIR, [1, 2, 0, 0, 0, 0]));
        assert!(may(Syscall::SOCKETPAIR, [1, 1, 0, 0, 0, 0]));
        assert!(!may(Syscall::CONNECT, [3, 0, 16, 0, 0, 0]));
        assert!(!may(Syscall::SENDTO, [3, 0, 0, FAST_OPEN, 0, 0]));
        assert!(!may(Syscall::SENDMSG, [3, 0, FAST_OPEN, 0, 0, 0]));
        assert!(may(Syscall::SENDMSG, [3, 0, 0x4000, 0, 0, 0]));
    }

    #[test]
    fn who_holds_calls_learns_the_list() {
        let profile = profile();
        let peers = profile.peers.expect("a list");
        assert_eq!(peers[0].to_string(), "127.0.0.0/8:*");
    }
}
