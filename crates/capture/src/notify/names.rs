//! Detects names that processes give themselves.
//!
//! `proc.name` stays the name at exec, so that a process that calls itself `sshd` is not taken for it. A
//! process that takes a name which a loaded rule compares with may try just that, which is reported once for
//! each process and name. `prctl(PR_SET_NAME)` is trapped for it; a name that was written to `/proc/PID/comm`
//! is found at the next event for which a rule asks for the name.

use std::sync::Arc;

use abi::constant::PR_SET_NAME;
use abi::{RegisterTest, Syscall, TestOp};
use bumpalo::Bump;
use event::{CallPlan, Comm, Evaluator, Lookup, Need, Plan, Process, Reason, Tid};

use super::EngineObserver;
use super::worker::{CallEvaluator, CallView};
use decoder::call::Call;
use process_info::memory::Memory;

/// Adds the call by which a thread changes its name to a plan, if a rule compares names. Must be called
/// before the plan is compiled to a filter.
pub fn plan_renames(plan: &mut Plan) {
    if plan.names.is_empty() {
        return;
    }
    let planned = plan
        .calls
        .entry(Syscall::PRCTL)
        .or_insert_with(|| CallPlan {
            any_of: Vec::new(),
            strings: false,
            result: Need::Never,
            reasons: Vec::new(),
        });
    if !planned.any_of.iter().any(Vec::is_empty) {
        let sets_name = RegisterTest::low(0, TestOp::Eq, PR_SET_NAME.u64());
        planned.any_of.push(vec![sets_name]);
    }
    let why = "changes the name of the thread";
    planned.reasons.push(Reason::State(why.into()));
}

/// Returns whether the call changes the name of the calling thread.
pub(crate) fn sets_name(call: &Call) -> bool {
    call.syscall == Syscall::PRCTL && call.raw(0) & 0xffff_ffff == PR_SET_NAME.u64()
}

/// Returns the name that the call gives the calling thread, if it is such a call and the name can be read.
pub(crate) fn given(call: &Call, memory: &Memory, arena: &Bump) -> Option<Comm> {
    let name = || memory.text(call.tid, call.raw(1), arena).ok();
    sets_name(call).then(name).flatten().map(Comm::new)
}

/// Programs that run scripts, by the beginning of their names.
const INTERPRETERS: [&[u8]; 6] = [b"node", b"perl", b"php", b"python", b"ruby", b"bun"];

/// Returns whether a name is that of the script that an interpreter runs: `env node /usr/bin/npm` calls itself
/// `npm`. The kernel would have named the process so if it had started the script itself.
fn is_of_script(process: &Process, name: Comm) -> bool {
    let runs_scripts = process.name().is_some_and(|comm| {
        INTERPRETERS
            .iter()
            .any(|one| comm.as_bytes().starts_with(one))
    });
    let image = process.image();
    let line = image.command_line.get().and_then(Option::as_ref);
    let script = line.and_then(|line| line.args.first());
    let last = script.and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    runs_scripts && last.is_some_and(|last| Comm::new(last) == name)
}

/// Tools that a shell of busybox runs in a child that it forks and does not exec, under the name of the tool.
const APPLETS: &[&[u8]] = &[
    b"arch",
    b"arp",
    b"awk",
    b"base32",
    b"base64",
    b"blkid",
    b"cat",
    b"chattr",
    b"chmod",
    b"chown",
    b"cp",
    b"cut",
    b"date",
    b"dd",
    b"df",
    b"dmesg",
    b"du",
    b"egrep",
    b"env",
    b"fdisk",
    b"fgrep",
    b"find",
    b"free",
    b"grep",
    b"head",
    b"hexdump",
    b"hostid",
    b"hostname",
    b"id",
    b"ifconfig",
    b"insmod",
    b"ip",
    b"kill",
    b"killall",
    b"last",
    b"less",
    b"ln",
    b"logname",
    b"ls",
    b"lsattr",
    b"lsmod",
    b"lsof",
    b"lspci",
    b"lsusb",
    b"mkdir",
    b"modinfo",
    b"more",
    b"mount",
    b"mv",
    b"nc",
    b"netstat",
    b"nl",
    b"nslookup",
    b"od",
    b"pgrep",
    b"pidof",
    b"ping",
    b"pkill",
    b"printenv",
    b"ps",
    b"pstree",
    b"readlink",
    b"rm",
    b"rmmod",
    b"route",
    b"sed",
    b"sort",
    b"split",
    b"stat",
    b"strings",
    b"tac",
    b"tail",
    b"tar",
    b"tee",
    b"test",
    b"timeout",
    b"top",
    b"touch",
    b"tr",
    b"traceroute",
    b"tree",
    b"truncate",
    b"umount",
    b"uname",
    b"uniq",
    b"uptime",
    b"users",
    b"w",
    b"wc",
    b"wget",
    b"which",
    b"who",
    b"whoami",
    b"xargs",
    b"xxd",
];

/// Returns whether a name is that of a tool which is part of the executable. The executable does the tool's work, so
/// it is what rules would see if it had started itself.
fn is_of_applet(executable: Option<&[u8]>, name: Comm) -> bool {
    // Where programs are installed, also below another root.
    const PLACES: [&[u8]; 2] = [b"/bin/busybox", b"/sbin/busybox"];
    let is_installed = |path: &[u8]| PLACES.iter().any(|place| path.ends_with(place));
    executable.is_some_and(is_installed) && APPLETS.contains(&name.as_bytes())
}

/// Reports a disguising name once for a process, and not for processes that were forked from it.
pub(crate) fn report_name(notices: &dyn EngineObserver, process: &Process, name: Comm) {
    let is_inherited = process.parent().is_some_and(|parent| {
        parent.last_comm() == name && Arc::ptr_eq(&parent.image(), &process.image())
    });
    process.set_last_comm(name);
    let image = process.image();
    let executable = image.executable.get().and_then(Option::as_deref);
    let is_its_own = is_of_script(process, name) || is_of_applet(executable, name);
    if !is_inherited && !is_its_own && process.reports_name(name) {
        notices.renamed(process, name);
    }
}

impl<J: Evaluator> CallEvaluator<J> {
    /// Reports a name that the process gives itself, if a rule compares with it and it was not the one at exec.
    /// A runtime that sets a container up may: one that runs from a copy in memory gives itself its usual name.
    pub(crate) fn note_name(&self, process: &Process, name: Comm) {
        if process.sets_up() {
            return;
        }
        let ruling = self.shared.ruling.load();
        if ruling.is_disguise(process, name) {
            report_name(&*self.shared.notices, process, name);
        }
    }

    /// Reports a name that a thread gives itself, if it is the first one of its process.
    pub(crate) fn note_thread_name(&self, tid: Tid, process: &Process, name: Comm) {
        if tid.0 == process.pid.0 {
            self.note_name(process, name);
        }
    }

    /// Returns the caller's present name, if it gave itself one that must be reported, and a rule asked for
    /// its name. If the process was replaced meanwhile, this is the name of another program; a caller that
    /// still waits in its call excludes that.
    pub(crate) fn new_name(&self, view: &CallView<'_>, process: &Process) -> Option<Comm> {
        view.live.comm.get()?;
        let shared = &*self.shared;
        let ruling = shared.ruling.load();
        if ruling.names.is_empty() || process.name().is_none() {
            return None;
        }
        let now = shared.world.thread_name(process, Tid(process.pid.0));
        match now {
            Lookup::Found(name) if ruling.is_disguise(process, name) => Some(name),
            Lookup::Found(name) => {
                process.set_last_comm(name);
                None
            }
            Lookup::Missing | Lookup::Unknown => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_busybox_runs_tools_under_their_names_and_only_its_own() {
        for (executable, name, expected) in [
            (Some("/usr/bin/busybox"), "ln", true),
            (Some("/bin/busybox"), "id", true),
            (Some("/usr/bin/busybox"), "sshd", false),
            (Some("/usr/bin/bash"), "ln", false),
            (Some("/tmp/busybox"), "ln", false),
            (None, "ln", false),
        ] {
            let path = executable.map(str::as_bytes);
            let name = Comm::new(name.as_bytes());
            assert_eq!(
                is_of_applet(path, name),
                expected,
                "{executable:?} {name:?}"
            );
        }
    }
}
