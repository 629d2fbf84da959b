//! Reader of the kernel's multicast audit records (audit(7), `AUDIT_NLGRP_READLOG`). AppArmor reports its
//! denials there, whether or not a daemon collects them.

use std::os::fd::OwnedFd;
use std::time::Duration;

use abi::Errno;
use policy::{EnforcerKind, Policy, Restriction};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};

use crate::Denial;

/// `AUDIT_NLGRP_READLOG` as a bit.
const GROUP: u32 = 1;
/// `AUDIT_AVC`.
const ACCESS: u16 = 1400;
const EACCES: Errno = Errno(13);
/// Maximum length of a kernel message (`MAX_AUDIT_MESSAGE_LENGTH`) with its header.
const MESSAGE: usize = 8970 + HEADER;
/// Size of `struct nlmsghdr`.
const HEADER: usize = 16;

/// The audit socket.
#[derive(Debug)]
pub(crate) struct Audit {
    socket: OwnedFd,
    profile: String,
    policy: Option<Policy>,
    lost: u64,
}

impl Audit {
    /// Opens the stream of denials under an AppArmor profile. `policy` is the policy of the profile.
    ///
    /// # Kernel
    /// 3.16; CAP_AUDIT_READ.
    ///
    /// # Errors
    /// Fails if this process may not listen.
    pub(crate) fn open(profile: &str, policy: Option<Policy>) -> std::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            flags,
            Some(netlink::AUDIT),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, GROUP))?;
        Ok(Self {
            socket,
            profile: profile.to_owned(),
            policy,
            lost: 0,
        })
    }

    /// Waits up to `limit` for denials, and returns those that arrived.
    ///
    /// # Errors
    /// Fails if the socket cannot be read.
    pub(crate) fn wait(&mut self, limit: Duration) -> std::io::Result<Vec<Denial>> {
        let mut denials = Vec::new();
        let mut limit = Timespec::try_from(limit).map_err(std::io::Error::other)?;
        loop {
            let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
            if poll(&mut ready, Some(&limit))? == 0 {
                return Ok(denials);
            }
            limit = Timespec::default();
            let mut buffer = [0; MESSAGE];
            match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => denials.extend(self.read(&buffer[..len])),
                // The kernel dropped an unknown number of records.
                Err(rustix::io::Errno::NOBUFS) => self.lost += 1,
                Err(rustix::io::Errno::AGAIN) => return Ok(denials),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Number of losses.
    #[must_use]
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    fn read(&self, message: &[u8]) -> Option<Denial> {
        let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
        let text = std::str::from_utf8(message.get(HEADER..)?).ok()?;
        let text = text.trim_end_matches(['\0', '\n']);
        (kind == ACCESS).then(|| denial(text, &self.profile, self.policy.as_ref()))?
    }
}

/// Parses `audit(TIME:SERIAL): apparmor="DENIED" operation="open" profile="..." name="..." pid=1 comm="cat"
/// ...`.
fn denial(text: &str, profile: &str, policy: Option<&Policy>) -> Option<Denial> {
    let field = |name: &str| self::field(text, name);
    let verdict = field("apparmor")?;
    let own = field("profile")?;
    // Matches child profiles and stacked profiles too.
    let is_own = own
        .split("//")
        .any(|part| part.trim_start_matches('&') == profile);
    if !is_own || verdict == "STATUS" {
        return None;
    }
    // A record without an operation is a denial too; the report lacks the name then.
    let operation = field("operation").unwrap_or_default();
    let path = field("name").filter(|name| name.starts_with('/'));
    let known = [
        "capname",
        "family",
        "sock_type",
        "requested_mask",
        "fstype",
        "srcname",
        "peer",
    ];
    let detail = known
        .iter()
        .filter_map(|name| Some(format!("{name}={}", field(name)?)));
    let rule = policy.and_then(|policy| {
        policy.rules.iter().find(|rule| {
            let mut each = rule.restrictions.iter();
            each.any(|restriction| is_about(restriction, &operation, path.as_deref(), &field))
        })
    });
    Some(Denial {
        enforcer: EnforcerKind::AppArmor,
        pid: field("pid")?.parse().ok()?,
        uid: field("fsuid").and_then(|uid| uid.parse().ok()),
        // A custom profile denies what it does not allow, so no rule matches.
        rule: rule.map_or_else(|| profile.to_owned(), |rule| rule.id.clone()),
        errno: (verdict == "DENIED").then_some(match operation.as_str() {
            "capable" | "ptrace" => Errno(1),
            _ => EACCES,
        }),
        detail: detail.collect::<Vec<_>>().join(" "),
        operation,
        path,
        // A kernel thread has no such field.
        comm: field("comm").unwrap_or_default(),
        exe: None,
    })
}

fn is_about(
    restriction: &Restriction,
    operation: &str,
    path: Option<&str>,
    field: &dyn Fn(&str) -> Option<String>,
) -> bool {
    match restriction {
        Restriction::File { path: own, .. } | Restriction::Connect { path: own } => {
            path.is_some_and(|path| own.matches(path))
        }
        Restriction::Exec { path: own } => path.is_some_and(|path| own.matches(path)),
        Restriction::Disk { .. } => path.is_some_and(|path| path.starts_with("/dev/")),
        Restriction::Capabilities(set) => {
            let name = field("capname").map(|name| format!("CAP_{}", name.to_uppercase()));
            let number = name.and_then(|name| abi::capability::from_name(&name));
            number.is_some_and(|number| set.contains(number))
        }
        Restriction::Socket(_) => matches!(operation, "create" | "socketpair" | "connect"),
        Restriction::Mount(_) => matches!(operation, "mount" | "umount" | "pivotroot"),
        Restriction::Ptrace { .. } => operation == "ptrace",
        Restriction::Operation(own) => match own.name.as_str() {
            "mount" => matches!(operation, "mount" | "pivotroot"),
            "umount" => operation == "umount",
            _ => own.apparmor.iter().any(|text| {
                let capability = field("capname").map(|name| format!("capability {name},"));
                capability.as_deref() == Some(text)
            }),
        },
        Restriction::AppArmorText(_)
        | Restriction::OnlyFiles(_)
        | Restriction::OnlyPeers(_)
        | Restriction::InsideConnections
        | Restriction::Egress { .. }
        | Restriction::Mode { .. }
        | Restriction::Syscall(_) => false,
    }
}

/// The value of `NAME="TEXT"` or `NAME=TEXT`. The kernel writes text with deceptive characters in
/// hexadecimal.
fn field(text: &str, name: &str) -> Option<String> {
    let start = text.match_indices(name).find(|(at, _)| {
        let before = text[..*at].chars().next_back();
        text[at + name.len()..].starts_with('=') && before.is_none_or(|c| c == ' ')
    });
    let value = &text[start?.0 + name.len() + 1..];
    if let Some(quoted) = value.strip_prefix('"') {
        return Some(quoted.split('"').next().unwrap_or(quoted).to_owned());
    }
    let word = value.split(' ').next().unwrap_or(value);
    let is_hex = word.len() > 1 && word.len().is_multiple_of(2);
    let texts = ["name", "comm", "srcname", "profile", "peer"];
    if texts.contains(&name) && is_hex && word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let byte = |at: usize| u8::from_str_radix(&word[at..at + 2], 16).ok();
        let bytes: Option<Vec<u8>> = (0..word.len()).step_by(2).map(byte).collect();
        return bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    }
    Some(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENIED: &str = "audit(1700000000.123:45): apparmor=\"DENIED\" operation=\"open\" \
        profile=\"tollgate-p.0123456789abcdef\" name=\"/etc/shadow\" pid=42 comm=\"cat\" \
        requested_mask=\"r\" denied_mask=\"r\" fsuid=1000 ouid=0";

    fn policy() -> Policy {
        let text = "policy:\n  enforcer: AppArmor\n  mode: EnhanceProtect\n  enhanceProtect:\n    \
                    privileged: true\n    hardeningRules: [disable-cap-net-raw]\n    \
                    attackProtectionRules: [{rules: [disable-access-shadow]}]\n";
        policy::load("p.yaml", text).0.remove(0)
    }

    #[test]
    fn a_denial_is_told_with_the_rule_that_the_profile_was_made_from() {
        let policy = policy();
        let profile = "tollgate-p.0123456789abcdef";
        let found = denial(DENIED, profile, Some(&policy)).unwrap();
        assert_eq!(found.rule, "disable-access-shadow");
        assert_eq!(
            (found.pid, found.uid, found.comm.as_str()),
            (42, Some(1000), "cat")
        );
        assert_eq!(found.errno, Some(EACCES));
        assert_eq!(found.path.as_deref(), Some("/etc/shadow"));
        assert!(denial(DENIED, "tollgate-q.0123456789abcdef", Some(&policy)).is_none());
        let capability = "audit(1.1:1): apparmor=\"DENIED\" operation=\"capable\" \
            profile=\"tollgate-p.0123456789abcdef\" pid=7 comm=\"ping\" capability=13  capname=\"net_raw\"";
        let found = denial(capability, profile, Some(&policy)).unwrap();
        assert_eq!(found.rule, "disable-cap-net-raw");
        assert_eq!(found.errno, Some(Errno(1)));
    }

    #[test]
    fn names_with_odd_characters_come_in_hexadecimal() {
        let text = "audit(1.1:1): apparmor=\"ALLOWED\" name=2F612062 pid=1";
        assert_eq!(field(text, "name").as_deref(), Some("/a b"));
        assert_eq!(field(text, "pid").as_deref(), Some("1"));
        assert_eq!(field(text, "absent"), None);
    }
}
