//! Parser of restrictions in the notation of the data files.

use abi::{Arch, Errno, Syscall, flags};
use ipnet::IpNet;

use super::{
    Destination, FileAccess, MountMatch, PtraceAccess, PtraceScope, Restriction, SocketMatch,
    SyscallAction, SyscallMatch,
};
use crate::operation::{Operation, read_capabilities};
use crate::pattern::Pattern;

/// Parses one line of a data file.
pub(crate) fn read_restriction(line: &str) -> Result<Vec<Restriction>, String> {
    let (kind, rest) = line.split_once(' ').ok_or("nothing follows the kind")?;
    let words: Vec<&str> = rest.split_whitespace().collect();
    let unknown = |word: &str| format!("`{word}` is unknown");
    let pattern = |word: &&str| Pattern::parse(word).map_err(|error| error.to_string());
    match kind {
        "file" => {
            let access = FileAccess::from_letters(words[0]).ok_or_else(|| unknown(words[0]))?;
            let each = |word| {
                Ok(Restriction::File {
                    path: pattern(word)?,
                    access,
                })
            };
            words[1..].iter().map(each).collect()
        }
        "exec" => words
            .iter()
            .map(|w| Ok(Restriction::Exec { path: pattern(w)? }))
            .collect(),
        "connect" => words
            .iter()
            .map(|w| Ok(Restriction::Connect { path: pattern(w)? }))
            .collect(),
        "disk" => {
            let access = FileAccess::from_letters(rest).ok_or_else(|| unknown(rest))?;
            Ok(vec![Restriction::Disk { access }])
        }
        "socket" => read_socket(&words).map(|socket| vec![Restriction::Socket(socket)]),
        "egress" => words.iter().map(|word| read_egress(word)).collect(),
        "service" => {
            let (namespace, name) = rest.split_once('/').ok_or_else(|| unknown(rest))?;
            let to = Destination::Service {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            };
            Ok(vec![Restriction::Egress {
                to,
                ports: Vec::new(),
            }])
        }
        "mount" => read_mount(rest).map(|mount| vec![Restriction::Mount(mount)]),
        "ptrace" => read_ptrace(&words),
        "capability" => read_capabilities(&words).map(|set| vec![Restriction::Capabilities(set)]),
        "mode" => {
            let bits = u32::from_str_radix(rest, 8).map_err(|error| error.to_string())?;
            Ok(vec![Restriction::Mode { bits }])
        }
        "call" => words.iter().map(|word| read_call(word)).collect(),
        "operation" => {
            let operation = Operation::find(rest).ok_or_else(|| unknown(rest))?;
            Ok(vec![Restriction::Operation(operation)])
        }
        _ => Err(unknown(kind)),
    }
}

fn read_call(word: &str) -> Result<Restriction, String> {
    let call = Syscall::from_name(word).ok_or_else(|| format!("no such system call: `{word}`"))?;
    Ok(Restriction::Syscall(SyscallMatch {
        call,
        any_of: vec![Vec::new()],
        action: SyscallAction::Errno(Errno::EPERM),
    }))
}

fn read_socket(words: &[&str]) -> Result<SocketMatch, String> {
    let [domains, types, protocols] = words else {
        return Err("expected domains, types and protocols".to_owned());
    };
    let list = |text: &str, number: &dyn Fn(&str) -> Option<u16>| match text {
        "any" => Ok(None),
        text => text
            .split(',')
            .map(|word| number(word).ok_or_else(|| format!("`{word}` is unknown")))
            .collect::<Result<Vec<_>, _>>()
            .map(Some),
    };
    Ok(SocketMatch {
        domains: list(domains, &socket_domain)?,
        types: list(types, &socket_type)?,
        protocols: list(protocols, &|word| word.parse().ok())?,
    })
}

/// The number of an address family: `inet` for `AF_INET`.
pub(crate) fn socket_domain(word: &str) -> Option<u16> {
    flag("socket_domain", "AF_", word)
}

/// The number of a type of socket: `stream` for `SOCK_STREAM`.
pub(crate) fn socket_type(word: &str) -> Option<u16> {
    flag("socket_type", "SOCK_", word).filter(|number| *number <= 0xf)
}

fn flag(set: &str, prefix: &str, word: &str) -> Option<u16> {
    let set = flags::FlagSet::from_name(set)?;
    let name = format!("{prefix}{}", word.to_uppercase());
    u16::try_from(set.value_of(Arch::X86_64, &name)?).ok()
}

fn read_egress(word: &str) -> Result<Restriction, String> {
    let network = read_network(word).ok_or_else(|| format!("invalid address `{word}`"))?;
    Ok(Restriction::Egress {
        to: Destination::Network(network),
        ports: Vec::new(),
    })
}

/// Parses an address or a network.
pub(crate) fn read_network(word: &str) -> Option<IpNet> {
    word.parse()
        .or_else(|_: ipnet::AddrParseError| {
            word.parse().map(|address: std::net::IpAddr| address.into())
        })
        .ok()
}

fn read_mount(text: &str) -> Result<MountMatch, String> {
    match text.split_once('=') {
        Some(("fstype", name)) => Ok(MountMatch::FileSystem(name.to_owned())),
        Some(("from", path)) => Pattern::parse(path)
            .map(MountMatch::From)
            .map_err(|error| error.to_string()),
        None if text == "disk" => Ok(MountMatch::Disk),
        _ => Err(format!("`{text}` is unknown")),
    }
}

fn read_ptrace(words: &[&str]) -> Result<Vec<Restriction>, String> {
    let [permissions, scope] = words else {
        return Err("expected permissions and a scope".to_owned());
    };
    let mut access = PtraceAccess::default();
    for name in permissions.split(',') {
        access = access
            .with(name)
            .ok_or_else(|| format!("`{name}` is unknown"))?;
    }
    let scope = match *scope {
        "outside" => PtraceScope::Outside,
        "any" => PtraceScope::Any,
        other => return Err(format!("`{other}` is unknown")),
    };
    Ok(vec![Restriction::Ptrace { access, scope }])
}
