//! Environments in which native and subjects run alike.

use crate::plan::Setup;

/// Where commands run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Environment {
    /// As they are.
    #[default]
    Plain,
    /// In new namespaces, with the capabilities that Docker leaves.
    Container,
    /// In a control group with a quarter of a processor, agent included.
    QuarterCpu,
    /// In a session that enters a container from outside, as `docker exec` does.
    Session,
}

/// Namespaces and capabilities of a container that Docker starts for root.
const CONTAINER: &str = "unshare --mount --pid --fork --kill-child --mount-proc --cgroup --uts --ipc \
    setpriv --bounding-set -all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,\
+setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write {}";

impl Environment {
    /// Returns the name, as `--setup` takes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Container => "container",
            Self::QuarterCpu => "quarter-cpu",
            Self::Session => "session",
        }
    }

    /// Returns the wrapper, if the environment needs one.
    pub(crate) fn setup(self) -> Option<Setup> {
        let wrapper = match self {
            Self::Plain => return None,
            Self::Container => CONTAINER,
            Self::QuarterCpu => "{tollgate} bench inside quarter-cpu {}",
            Self::Session => "{tollgate} bench inside session {}",
        };
        Some(Setup {
            name: self.name().to_owned(),
            wrapper: wrapper.to_owned(),
        })
    }
}
