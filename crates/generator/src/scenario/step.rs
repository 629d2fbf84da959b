//! Calls, made as described.

use std::ffi::CString;
use std::net::SocketAddr;
use std::path::PathBuf;

use abi::constant::{AF_INET, AF_INET6, AF_UNIX};
use abi::{Errno, Signal};
use sys::attempt::{Attempt, make};

use super::Step;
use super::values::{Arguments, Values};

/// Largest buffer of a read or write, in bytes.
const LONGEST: i64 = 1 << 20;

/// Calls that can be described, sorted by name. `rules explain` knows more calls.
pub(super) const CALLS: &[(&str, Play)] = &[
    ("connect", connect),
    ("dup", dup),
    ("dup2", dup2),
    ("dup3", dup3),
    ("finit_module", finit_module),
    ("init_module", init_module),
    ("kill", kill),
    ("link", link),
    ("linkat", linkat),
    ("open", open),
    ("openat", openat),
    ("openat2", openat2),
    ("read", read),
    ("sendto", sendto),
    ("socket", socket),
    ("symlink", symlink),
    ("symlinkat", symlinkat),
    ("write", write),
];

/// Function that makes a call and returns the kernel's raw result.
type Play = fn(&Arguments) -> Result<i64, String>;

/// Makes the call of a step, and stores the values that later steps may refer to.
pub(super) fn play(step: &Step, values: &mut Values) -> Result<(), String> {
    let describe_error = |why: String| format!("step {}: {}: {why}", step.name, step.syscall);
    let arguments = Arguments::new(&step.args, values);
    let call = CALLS.iter().find(|(name, _)| *name == step.syscall);
    let (_, play) = call.ok_or_else(|| describe_error("no such call".to_owned()))?;
    let result = play(&arguments).map_err(describe_error)?;
    let resolved = arguments.resolved().map_err(describe_error)?;
    for (path, value) in resolved {
        values.put(format!("{}.{path}", step.name), value);
    }
    values.put(format!("{}.ret", step.name), result);
    check_result(step.expected_error.as_deref(), result).map_err(describe_error)
}

/// Returns the path of the file that a step may make.
pub(super) fn makes(step: &Step, values: &Values) -> Option<PathBuf> {
    let (dir, path) = match step.syscall.as_str() {
        "open" => (None, "pathname"),
        "openat" | "openat2" => (Some("dirFd"), "pathname"),
        "symlink" => (None, "linkPath"),
        "symlinkat" => (Some("newDirFd"), "linkPath"),
        "link" => (None, "newPath"),
        "linkat" => (Some("newDirFd"), "newPath"),
        _ => return None,
    };
    let arguments = Arguments::new(&step.args, values);
    let path = PathBuf::from(arguments.text(path).ok()?);
    let folder = dir.and_then(|dir| arguments.number(dir, None).ok());
    match folder.filter(|number| *number >= 0) {
        Some(number) => Some(
            std::fs::read_link(format!("/proc/self/fd/{number}"))
                .ok()?
                .join(path),
        ),
        None => std::path::absolute(path).ok(),
    }
}

fn check_result(expected: Option<&str>, result: i64) -> Result<(), String> {
    let name = |errno: Errno| {
        errno
            .name()
            .map_or_else(|| errno.0.to_string(), str::to_owned)
    };
    match (expected, Errno::from_result(result)) {
        (None, None) => Ok(()),
        (Some(expected), Some(errno)) if name(errno) == expected => Ok(()),
        (None, Some(errno)) => Err(format!("failed with {}", name(errno))),
        (Some(expected), Some(errno)) => {
            Err(format!("failed with {}, not with {expected}", name(errno)))
        }
        (Some(expected), None) => Err(format!("did not fail with {expected}")),
    }
}

fn int(value: i64) -> Result<i32, String> {
    i32::try_from(value).map_err(|_error| format!("{value} is not a 32-bit number"))
}

fn unsigned(value: i64) -> Result<u32, String> {
    u32::try_from(value).map_err(|_error| format!("{value} is not a 32-bit number"))
}

fn path(arguments: &Arguments, name: &str) -> Result<CString, String> {
    CString::new(arguments.text(name)?).map_err(|error| format!("`{name}`: {error}"))
}

fn number(arguments: &Arguments, name: &str, set: Option<&str>) -> Result<i32, String> {
    int(arguments.number(name, set)?)
}

fn length(arguments: &Arguments, default: usize) -> Result<usize, String> {
    let default = i64::try_from(default).unwrap_or(LONGEST);
    let length = arguments.number_or("len", None, default)?;
    usize::try_from(length.clamp(0, LONGEST)).map_err(|error| error.to_string())
}

/// Returns the bytes of an argument, truncated or padded with zeros to `len`.
fn bytes(arguments: &Arguments, name: &str) -> Result<Vec<u8>, String> {
    let mut bytes = arguments.text_or(name, "")?.into_bytes();
    let length = length(arguments, bytes.len())?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// Returns an address in the kernel's form: a path for Unix sockets, otherwise address and port.
fn address(text: &str) -> Vec<u8> {
    let mut raw = Vec::new();
    match text.parse::<SocketAddr>() {
        Ok(SocketAddr::V4(address)) => {
            raw.extend(AF_INET.u16().to_ne_bytes());
            raw.extend(address.port().to_be_bytes());
            raw.extend(address.ip().octets());
            raw.extend([0; 8]);
        }
        Ok(SocketAddr::V6(address)) => {
            raw.extend(AF_INET6.u16().to_ne_bytes());
            raw.extend(address.port().to_be_bytes());
            raw.extend(address.flowinfo().to_be_bytes());
            raw.extend(address.ip().octets());
            raw.extend(address.scope_id().to_ne_bytes());
        }
        Err(_a_path) => {
            raw.extend(AF_UNIX.u16().to_ne_bytes());
            raw.extend(text.as_bytes());
            raw.push(0);
        }
    }
    raw
}

fn connect(arguments: &Arguments) -> Result<i64, String> {
    let fd = number(arguments, "fd", None)?;
    Ok(make(Attempt::Connect(
        fd,
        &address(&arguments.text("address")?),
    )))
}

fn dup(arguments: &Arguments) -> Result<i64, String> {
    Ok(make(Attempt::Dup(number(arguments, "oldFd", None)?)))
}

fn dup2(arguments: &Arguments) -> Result<i64, String> {
    let (old, new) = (
        number(arguments, "oldFd", None)?,
        number(arguments, "newFd", None)?,
    );
    Ok(make(Attempt::Dup2(old, new)))
}

fn dup3(arguments: &Arguments) -> Result<i64, String> {
    let (old, new) = (
        number(arguments, "oldFd", None)?,
        number(arguments, "newFd", None)?,
    );
    let flags = int(arguments.number_or("flags", Some("open"), 0)?)?;
    Ok(make(Attempt::Dup3(old, new, flags)))
}

fn finit_module(arguments: &Arguments) -> Result<i64, String> {
    let parameters =
        CString::new(arguments.text_or("paramValues", "")?).map_err(|error| error.to_string())?;
    let flags = int(arguments.number_or("flags", Some("module_init"), 0)?)?;
    let fd = number(arguments, "fd", None)?;
    Ok(make(Attempt::FinitModule(fd, &parameters, flags)))
}

fn init_module(arguments: &Arguments) -> Result<i64, String> {
    let parameters =
        CString::new(arguments.text_or("paramValues", "")?).map_err(|error| error.to_string())?;
    let image = arguments.text("moduleImage")?;
    Ok(make(Attempt::InitModule(image.as_bytes(), &parameters)))
}

fn kill(arguments: &Arguments) -> Result<i64, String> {
    let signal = arguments.text("sig")?;
    let signal = match Signal::from_name(&signal) {
        Some(signal) => signal.0,
        None => number(arguments, "sig", None)?,
    };
    Ok(make(Attempt::Kill(number(arguments, "pid", None)?, signal)))
}

fn link(arguments: &Arguments) -> Result<i64, String> {
    let (old, new) = (path(arguments, "oldPath")?, path(arguments, "newPath")?);
    Ok(make(Attempt::Link(&old, &new)))
}

fn linkat(arguments: &Arguments) -> Result<i64, String> {
    let (old, new) = (path(arguments, "oldPath")?, path(arguments, "newPath")?);
    let flags = int(arguments.number_or("flags", Some("at"), 0)?)?;
    let (old_dir, new_dir) = (
        number(arguments, "oldDirFd", None)?,
        number(arguments, "newDirFd", None)?,
    );
    Ok(make(Attempt::Linkat(old_dir, &old, new_dir, &new, flags)))
}

fn open(arguments: &Arguments) -> Result<i64, String> {
    let flags = number(arguments, "flags", Some("open"))?;
    let mode = unsigned(arguments.number_or("mode", Some("mode"), 0)?)?;
    Ok(make(Attempt::Open(
        &path(arguments, "pathname")?,
        flags,
        mode,
    )))
}

fn openat(arguments: &Arguments) -> Result<i64, String> {
    let flags = number(arguments, "flags", Some("open"))?;
    let mode = unsigned(arguments.number_or("mode", Some("mode"), 0)?)?;
    let dir = number(arguments, "dirFd", None)?;
    Ok(make(Attempt::Openat(
        dir,
        &path(arguments, "pathname")?,
        flags,
        mode,
    )))
}

fn openat2(arguments: &Arguments) -> Result<i64, String> {
    let part = |name: &str, set: &str| -> Result<u64, String> {
        let value = arguments.number_or(name, Some(set), 0)?;
        u64::try_from(value).map_err(|error| format!("`{name}`: {error}"))
    };
    let how = [
        part("how.flags", "open")?,
        part("how.mode", "mode")?,
        part("how.resolve", "resolve")?,
    ];
    let dir = number(arguments, "dirFd", None)?;
    Ok(make(Attempt::Openat2(
        dir,
        &path(arguments, "pathname")?,
        &how,
    )))
}

fn read(arguments: &Arguments) -> Result<i64, String> {
    let mut buffer = bytes(arguments, "buffer")?;
    Ok(make(Attempt::Read(
        number(arguments, "fd", None)?,
        &mut buffer,
    )))
}

fn sendto(arguments: &Arguments) -> Result<i64, String> {
    let flags = int(arguments.number_or("flags", Some("message"), 0)?)?;
    let fd = number(arguments, "fd", None)?;
    let to = address(&arguments.text("destAddr")?);
    Ok(make(Attempt::Sendto(
        fd,
        &bytes(arguments, "buf")?,
        flags,
        &to,
    )))
}

fn socket(arguments: &Arguments) -> Result<i64, String> {
    let domain = number(arguments, "domain", Some("socket_domain"))?;
    let kind = number(arguments, "type", Some("socket_type"))?;
    Ok(make(Attempt::Socket(
        domain,
        kind,
        number(arguments, "protocol", Some("ip_protocol"))?,
    )))
}

fn symlink(arguments: &Arguments) -> Result<i64, String> {
    let (target, link) = (path(arguments, "target")?, path(arguments, "linkPath")?);
    Ok(make(Attempt::Symlink(&target, &link)))
}

fn symlinkat(arguments: &Arguments) -> Result<i64, String> {
    let (target, link) = (path(arguments, "target")?, path(arguments, "linkPath")?);
    Ok(make(Attempt::Symlinkat(
        &target,
        number(arguments, "newDirFd", None)?,
        &link,
    )))
}

fn write(arguments: &Arguments) -> Result<i64, String> {
    Ok(make(Attempt::Write(
        number(arguments, "fd", None)?,
        &bytes(arguments, "buffer")?,
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn step(
        name: &str,
        syscall: &str,
        args: serde_json::Value,
        expected_error: Option<&str>,
    ) -> Step {
        Step {
            name: name.to_owned(),
            syscall: syscall.to_owned(),
            args: args.as_object().unwrap().clone(),
            expected_error: expected_error.map(str::to_owned),
        }
    }

    #[test]
    fn a_step_uses_what_an_earlier_one_has_made() {
        let mut values = Values::default();
        let open = json!({"pathname": "/dev/zero", "flags": "O_RDONLY|O_CLOEXEC"});
        play(&step("o", "open", open, None), &mut values).unwrap();
        let read_some = json!({"fd": "${o.ret}", "len": 3});
        play(&step("r", "read", read_some, None), &mut values).unwrap();
        let given = json!({"n": "${r.ret}"});
        assert_eq!(
            Arguments::new(given.as_object().unwrap(), &values).number("n", None),
            Ok(3)
        );
    }

    #[test]
    fn errors_are_expected_by_name_or_are_failures() {
        let mut values = Values::default();
        let bad = json!({"oldFd": -1});
        let refused = play(&step("d", "dup", bad.clone(), None), &mut values).unwrap_err();
        assert_eq!(refused, "step d: dup: failed with EBADF");
        play(&step("d", "dup", bad.clone(), Some("EBADF")), &mut values).unwrap();
        let refused = play(&step("d", "dup", bad, Some("EPERM")), &mut values).unwrap_err();
        assert!(refused.ends_with("failed with EBADF, not with EPERM"));
        let refused = play(
            &step("d", "dup", json!({"oldFd": 1}), Some("EPERM")),
            &mut values,
        );
        assert!(refused.unwrap_err().ends_with("did not fail with EPERM"));
    }

    #[test]
    fn addresses_are_told_apart() {
        assert_eq!(address("1.2.3.4:80")[..8], [2, 0, 0, 80, 1, 2, 3, 4]);
        assert_eq!(address("[::1]:80").len(), 28);
        assert_eq!(address("/x"), [1, 0, b'/', b'x', 0]);
    }
}
