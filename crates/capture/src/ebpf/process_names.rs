//! Names that processes give themselves.

use event::{Comm, Evaluator, Process};

use super::record::Header;
use super::worker::RecordEvaluator;
use crate::notify::is_disguise;
use crate::notify::names::report_name;

impl<J: Evaluator + 'static> RecordEvaluator<J> {
    /// Returns whether a process has the root of this program.
    pub(super) fn has_own_root(&self, header: &Header) -> bool {
        let root = header.root;
        let own_root = self.shared.world.own_root();
        own_root.is_some_and(|own| own.device == root.device && own.inode == root.inode)
    }

    /// Notes the present name of a process, and reports one that it gave itself to pass for another program.
    pub(super) fn note_name(&self, header: &Header, process: &Process) {
        let shared = &self.shared;
        let image = shared.table.image(process, header);
        let names = &shared.tables.load().compared_names;
        if !is_disguise(names, image.name.get().copied(), header.comm) {
            process.set_last_comm(header.comm);
            return;
        }
        // Root of the host could replace runc; nobody else is believed to be it.
        let may_be_runc = header.fs_uid == 0 && self.has_own_root(header);
        let executable = image.executable.get().and_then(Option::as_deref);
        if may_be_runc && is_name_of_runc(executable, header.comm) {
            process.set_last_comm(header.comm);
            // It keeps the name until the container's program begins, also where it has another root.
            process.reports_name(header.comm);
            return;
        }
        report_name(&*shared.notices, process, header.comm);
    }
}

/// Returns whether a name is one that runc gives its processes while it sets a container up, such as `runc:[2:INIT]`. It
/// has started itself anew before, by `/proc/self/exe` and mostly from a copy in memory, which names the process `exe` or
/// by a number. Any program can have such a path and name, so this proves nothing alone.
fn is_name_of_runc(executable: Option<&[u8]>, name: Comm) -> bool {
    const COPY: &[u8] = b"/memfd:runc_cloned:/proc/self/exe";
    let is_runc = |path: &[u8]| {
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        path == COPY || path.ends_with(b"/runc")
    };
    executable.is_some_and(is_runc) && name.as_bytes().starts_with(b"runc:[")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runc_calls_itself_by_what_it_does_to_a_container() {
        const COPY: &str = "/memfd:runc_cloned:/proc/self/exe";
        let deleted = format!("{COPY} (deleted)");
        for (executable, name, expected) in [
            (Some(COPY), "runc:[1:CHILD]", true),
            (Some(&*deleted), "runc:[2:INIT]", true),
            (Some("/usr/sbin/runc"), "runc:[0:PARENT]", true),
            (Some("/usr/sbin/runc"), "sshd", false),
            (Some("/memfd:runc"), "runc:[2:INIT]", false),
            (Some("/tmp/notrunc"), "runc:[2:INIT]", false),
            (None, "runc:[2:INIT]", false),
        ] {
            let path = executable.map(str::as_bytes);
            let name = Comm::new(name.as_bytes());
            assert_eq!(
                is_name_of_runc(path, name),
                expected,
                "{executable:?} {name:?}"
            );
        }
    }
}
