//! Environments in which native and subjects run alike.

use clap::ValueEnum;

use crate::plan::Setup;

/// Where commands run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Environment {
    /// As they are
    Plain,
    /// In new namespaces, with the capabilities that Docker leaves
    Container,
    /// In a control group with a quarter of a processor, agent included
    QuarterCpu,
    /// In a session that enters a container from outside, as `docker exec` does
    Session,
}

/// Namespaces and capabilities of a container that Docker starts for root.
const CONTAINER: &str = "unshare --mount --pid --fork --kill-child --mount-proc --cgroup --uts --ipc \
    setpriv --bounding-set -all,+chown,+dac_override,+fsetid,+fowner,+mknod,+net_raw,+setgid,+setuid,\
+setfcap,+setpcap,+net_bind_service,+sys_chroot,+kill,+audit_write {}";

impl Environment {
    /// Returns the wrapper, if the environment needs one.
    pub(crate) fn setup(self) -> Option<Setup> {
        let wrapper = match self {
            Self::Plain => return None,
            Self::Container => CONTAINER,
            Self::QuarterCpu => "{tollgate} bench inside quarter-cpu {}",
            Self::Session => "{tollgate} bench inside session {}",
        };
        Some(Setup {
            name: super::value_name(&self),
            wrapper: wrapper.to_owned(),
        })
    }
}
