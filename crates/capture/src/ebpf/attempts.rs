//! Probes which hooks a kernel allows, and which calls they miss.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use super::functions::{Functions, entry_names};
use super::hooks::{examples, native_prefix};

/// Filters `calls`, which have no tracepoint, for calls that the kernel lacks: these can only fail. Fails if
/// the kernel has one of them.
pub(super) fn lacking(calls: Vec<&'static str>) -> Result<Vec<&'static str>, String> {
    let symbols = fs::read_to_string("/proc/kallsyms")
        .map_err(|error| format!("cannot read /proc/kallsyms: {error}"))?;
    // A weak function stands in for a call that was left out.
    let strong = symbols.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let kind = words.next()?;
        let name = words.next()?.strip_prefix(native_prefix())?;
        (!kind.eq_ignore_ascii_case("w")).then_some(name)
    });
    let strong: BTreeSet<&str> = strong.collect();
    if strong.is_empty() {
        return Err("/proc/kallsyms names no functions of calls".to_owned());
    }
    for call in &calls {
        let is_there = |name: &String| strong.contains(name.as_str());
        if entry_names(call).iter().any(is_there) {
            return Err(format!("no tracepoint for {call}"));
        }
    }
    Ok(calls)
}

/// Returns the tracepoint of a call's return.
pub(super) fn tracepoint(call: &str) -> Option<String> {
    let folders = [
        "/sys/kernel/tracing/events/syscalls",
        "/sys/kernel/debug/tracing/events/syscalls",
    ];
    let exists = |event: &String| {
        folders
            .iter()
            .any(|folder| Path::new(folder).join(event).exists())
    };
    // The call's own name, or else the only other name that there is.
    let own = format!("sys_exit_{call}");
    let others = entry_names(call).into_iter();
    let others = others.map(|name| format!("sys_exit_{name}"));
    // newstat goes before stat, which is the call of the same name that only old programs make.
    let newer = format!("sys_exit_new{call}");
    [newer, own].into_iter().chain(others).find(exists)
}

/// Returns the functions if they can be hooked: attaches a program to one to find out.
pub(super) fn try_functions() -> Result<Functions, String> {
    let functions = Functions::read()?;
    let [example, _] = examples();
    let known = functions.named(&example);
    let known = known.ok_or_else(|| format!("the kernel has no function {example}"))?;
    let refused = |error: sys::SyscallError| error.to_string();
    let program = sys::bpf::load_return_hook(known.id, None).map_err(refused)?;
    sys::bpf::attach_hook(program.as_fd()).map_err(refused)?;
    match preempts() {
        None => Ok(functions),
        Some(why) => Err(why),
    }
}

/// Returns why the kernel may preempt a program on a function. Another program that runs then would find the
/// working memory in use, and the same one would not run at all. Around programs on tracepoints of calls, all
/// of them (`raw`) and single ones (`per-call`), the kernel disables preemption itself, whatever it does
/// elsewhere (include/trace/bpf_probe.h, kernel/trace/trace_syscalls.c).
fn preempts() -> Option<String> {
    let version = rustix::system::uname();
    let version = version.version().to_string_lossy().into_owned();
    if !version.contains("PREEMPT") {
        return None;
    }
    if !version.contains("PREEMPT_DYNAMIC") {
        return Some("the kernel preempts itself".to_owned());
    }
    match fs::read_to_string("/sys/kernel/debug/sched/preempt") {
        Ok(modes) if modes.contains("(none)") || modes.contains("(voluntary)") => None,
        Ok(modes) => Some(format!("the kernel preempts itself ({})", modes.trim())),
        Err(error) => Some(format!(
            "cannot read the preemption mode: /sys/kernel/debug/sched/preempt: {error}"
        )),
    }
}

/// Returns which calls a program can make that the tracepoints of calls do not report: makes such calls to find out.
pub(super) fn other_conventions() -> Option<String> {
    #[cfg(target_arch = "x86_64")]
    {
        match sys::syscall::has_int80() {
            Ok(true) => return Some("calls by `int 0x80` and of 32-bit programs".to_owned()),
            Err(error) => return Some(format!("calls by `int 0x80` (cannot try one: {error})")),
            Ok(false) => {}
        }
        sys::syscall::has_x32().then(|| "calls of x32 programs".to_owned())
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        Some("calls of 32-bit programs".to_owned())
    }
}

pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {}", with_causes(cause)),
        None => error.to_string(),
    }
}
