//! Resource use and limits.

use std::time::Duration;

use crate::error::{Result, SyscallError};
use crate::signal::{MaskChange, SignalSet, SignalStream, change_mask};

/// The processes or thread whose use is reported.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UsageOf {
    /// Children that were waited for. Their peak memory is the largest of any child so far.
    Children,
    /// This process.
    Process,
    /// This thread.
    Thread,
}

/// Resources used.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// CPU time outside the kernel.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Peak resident memory in KiB.
    pub max_resident_kib: u64,
    /// Page faults without I/O.
    pub minor_faults: u64,
    /// Page faults with I/O.
    pub major_faults: u64,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
}

/// Resources used so far.
///
/// # Errors
/// None are known.
pub fn usage(who: UsageOf) -> Result<Usage> {
    let who = match who {
        UsageOf::Children => libc::RUSAGE_CHILDREN,
        UsageOf::Process => libc::RUSAGE_SELF,
        UsageOf::Thread => libc::RUSAGE_THREAD,
    };
    // SAFETY: `rusage` is plain data, for which zero bytes are a value.
    let mut raw: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one rusage to `raw`.
    unsafe { syscall!("getrusage", libc::SYS_getrusage, who, &raw mut raw) }?;
    Ok(Usage {
        user: duration(raw.ru_utime),
        system: duration(raw.ru_stime),
        max_resident_kib: raw.ru_maxrss.cast_unsigned(),
        minor_faults: raw.ru_minflt.cast_unsigned(),
        major_faults: raw.ru_majflt.cast_unsigned(),
        voluntary_switches: raw.ru_nvcsw.cast_unsigned(),
        involuntary_switches: raw.ru_nivcsw.cast_unsigned(),
    })
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = Duration::from_secs(time.tv_sec.cast_unsigned());
    seconds + Duration::from_micros(time.tv_usec.cast_unsigned())
}

/// A soft and a hard limit; `u64::MAX` means unlimited.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Limit {
    /// The enforced limit.
    pub soft: u64,
    /// The maximum of the soft limit.
    pub hard: u64,
}

/// Reads a limit (`libc::RLIMIT_*`) of a process; 0 means this process.
///
/// # Errors
/// EINVAL, ESRCH, EPERM.
pub fn limit(pid: i32, resource: u32) -> Result<Limit> {
    let mut old = Limit::default();
    // SAFETY: the kernel writes two 64-bit numbers to `old`.
    unsafe { prlimit(pid, resource, std::ptr::null(), &raw mut old) }?;
    Ok(old)
}

/// Sets a limit (`libc::RLIMIT_*`) of a process; 0 means this process.
///
/// # Errors
/// EINVAL if the soft limit exceeds the hard limit, EPERM for raising the hard limit, ESRCH.
pub fn set_limit(pid: i32, resource: u32, limit: Limit) -> Result<()> {
    // SAFETY: the kernel reads two 64-bit numbers from `limit`.
    unsafe { prlimit(pid, resource, &raw const limit, std::ptr::null_mut()) }
}

/// Makes prlimit(2).
///
/// # Safety
/// `new` may be read and `old` may be written, unless it is null.
unsafe fn prlimit(pid: i32, resource: u32, new: *const Limit, old: *mut Limit) -> Result<()> {
    // SAFETY: the caller answers for both pointers.
    unsafe { syscall!("prlimit64", libc::SYS_prlimit64, pid, resource, new, old) }?;
    Ok(())
}

/// Runs `act` without the limit on file sizes, which the kernel applies to memory files too: raises the limit
/// as far as this process may, and blocks SIGXFSZ, which would end the process. Mask and limit are restored.
///
/// # Errors
/// Those of `act`: EFBIG where the limit stays too small.
pub fn beyond_file_size<T, E: From<SyscallError>>(
    act: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    const NONE: u64 = u64::MAX;
    let callers = limit(0, libc::RLIMIT_FSIZE)?;
    if callers.soft == NONE {
        return act();
    }
    let signal = SignalSet::of(&[libc::SIGXFSZ]);
    let mask = change_mask(MaskChange::Block, signal)?;
    let lifted = |soft, hard| set_limit(0, libc::RLIMIT_FSIZE, Limit { soft, hard });
    // Raising the hard limit needs CAP_SYS_RESOURCE; without it, the soft limit can be raised to the hard
    // one.
    let is_lifted = lifted(NONE, NONE).or_else(|_| lifted(callers.hard, callers.hard));
    let outcome = act();
    if is_lifted.is_ok() {
        set_limit(0, libc::RLIMIT_FSIZE, callers)?;
    }
    if !mask.contains(libc::SIGXFSZ) {
        // A pending signal comes from `act`, whose error reports it.
        while SignalStream::new(signal)?.next()?.is_some() {}
        change_mask(MaskChange::Set, mask)?;
    }
    outcome
}

/// Maximum number of CPUs in a mask of this module.
const CPUS: usize = 8192;

/// Restricts a thread (0 means the calling one) to these CPUs.
///
/// # Errors
/// EINVAL if none of them exists or a number is above 8191, ESRCH, EPERM.
pub fn set_affinity(tid: i32, cpus: &[usize]) -> Result<()> {
    let mut mask = [0_u64; CPUS / 64];
    for cpu in cpus {
        let Some(word) = mask.get_mut(cpu / 64) else {
            return Err(crate::SyscallError::new("sched_setaffinity", libc::EINVAL));
        };
        *word |= 1 << (cpu % 64);
    }
    // SAFETY: the kernel reads at most the given size, that of `mask`.
    unsafe {
        syscall!(
            "sched_setaffinity",
            libc::SYS_sched_setaffinity,
            tid,
            size_of_val(&mask),
            mask.as_ptr()
        )
    }?;
    Ok(())
}

/// The CPUs on which a thread (0 means the calling one) may run.
///
/// # Errors
/// EINVAL on a host with more than 8192 CPUs, ESRCH.
pub fn affinity(tid: i32) -> Result<Vec<usize>> {
    let mut mask = [0_u64; CPUS / 64];
    // SAFETY: the kernel writes at most the given size, that of `mask`.
    unsafe {
        syscall!(
            "sched_getaffinity",
            libc::SYS_sched_getaffinity,
            tid,
            size_of_val(&mask),
            mask.as_mut_ptr()
        )
    }?;
    Ok((0..CPUS)
        .filter(|cpu| mask[cpu / 64] & (1 << (cpu % 64)) != 0)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn use_grows_and_limits_are_kept() {
        let before = usage(UsageOf::Thread).expect("own use");
        let mut sum = 0_u64;
        while usage(UsageOf::Thread).expect("own use").user
            + usage(UsageOf::Thread).expect("own use").system
            <= before.user + before.system
        {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(usage(UsageOf::Process).expect("own use").max_resident_kib > 100);
        let done = testing::in_child(|| {
            let wanted = Limit { soft: 64, hard: 64 };
            set_limit(0, libc::RLIMIT_NOFILE, wanted).map_err(|e| e.errno())?;
            let now = limit(0, libc::RLIMIT_NOFILE).map_err(|e| e.errno())?;
            let wrong = set_limit(0, libc::RLIMIT_NOFILE, Limit { soft: 65, hard: 64 });
            let refused = wrong.is_err_and(|e| e.is(libc::EINVAL));
            if now == wanted && refused {
                Ok(())
            } else {
                Err(200)
            }
        });
        assert_eq!(done, Ok(()));
    }

    /// A limit that cannot be raised causes an error, and kills no process.
    #[test]
    fn memory_grows_beyond_a_limit_on_files_as_far_as_that_may_be_lifted() {
        let limits = [(100, u64::MAX, None), (100, 100, Some(libc::EFBIG))];
        for (soft, hard, expected) in limits {
            let done = testing::in_child(|| {
                let errno = |error: SyscallError| error.errno();
                if hard == soft {
                    let none = crate::credential::CapabilitySets::default();
                    crate::credential::set_capabilities(none).map_err(errno)?;
                }
                set_limit(0, libc::RLIMIT_FSIZE, Limit { soft, hard }).map_err(errno)?;
                let made = beyond_file_size(|| crate::shared::SharedWords::create(1024));
                let kept = limit(0, libc::RLIMIT_FSIZE).map_err(errno)? == Limit { soft, hard };
                let is_expected = made.err().map(errno) == expected;
                if kept && is_expected {
                    Ok(())
                } else {
                    Err(200)
                }
            });
            assert_eq!(done, Ok(()), "{soft} {hard}");
        }
    }

    #[test]
    fn a_thread_is_pinned_to_one_cpu() {
        let thread = std::thread::spawn(|| {
            let all = affinity(0).expect("own mask");
            let last = *all.last().expect("at least one CPU");
            set_affinity(0, &[last]).expect("it was allowed before");
            assert_eq!(affinity(0).expect("own mask"), [last]);
            assert!(set_affinity(0, &[CPUS]).is_err_and(|e| e.is(libc::EINVAL)));
            assert!(set_affinity(0, &[]).is_err_and(|e| e.is(libc::EINVAL)));
        });
        thread.join().expect("the checks above hold");
    }
}
