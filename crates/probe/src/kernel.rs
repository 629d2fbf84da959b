//! Probe of the kernel version.

use sys::features::{self, KernelVersion};

use super::{Support, fix};

/// First kernel versions with a relevant feature, newest first.
const LEVELS: &[(KernelVersion, &str)] = &[
    (
        KernelVersion::new(6, 6),
        "supports all features of the engine notify",
    ),
    (
        KernelVersion::new(5, 19),
        "no SYNC_WAKE_UP (6.6): each trapped call is slower",
    ),
    (
        KernelVersion::new(5, 11),
        "no WAIT_KILLABLE_RECV (5.19): a signal may repeat a trapped call",
    ),
    (
        KernelVersion::new(5, 6),
        "no WAIT_KILLABLE_RECV (5.19); constant-action bitmaps (5.11) are missing, so that \
         calls that no rule needs are slower",
    ),
    (
        KernelVersion::new(5, 5),
        "no WAIT_KILLABLE_RECV (5.19), no constant-action bitmaps (5.11), no pidfd_getfd (5.6): \
         calls that no rule needs are slower, and peers of sockets may be unknown",
    ),
];

pub(super) fn version() -> Support {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy().into_owned();
    let Some(real) = KernelVersion::parse(&release) else {
        return Support::partial(format!("cannot read the version in `{release}`"));
    };
    let (version, release) = match features::pretended() {
        Some(pretended) if pretended < real => {
            (pretended, format!("{release}, treated as {pretended}"))
        }
        _ => (real, release),
    };
    match LEVELS.iter().find(|(level, _)| version >= *level) {
        Some((level, what)) if *level == LEVELS[0].0 => Support::yes(format!("{release}: {what}")),
        Some((_, missing)) => {
            Support::partial_with_fix(format!("{release}: {missing}"), fix::newer_kernel("6.6"))
        }
        None => Support::no(
            format!("{release} is older than 5.5, which can continue a trapped call"),
            fix::newer_kernel("5.5"),
        ),
    }
}
