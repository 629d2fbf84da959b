//! Constants of the host, as the kernel passed them to this process at its start.
//!
//! The C library keeps them. `rustix` reads them from `/proc/self/auxv` where the kernel has no `PR_GET_AUXV`
//! (before Linux 6.4), which a process that has hidden itself may not open.

/// Page size in bytes.
#[must_use]
pub fn page_size() -> usize {
    number(libc::_SC_PAGESIZE).expect("every machine has pages")
}

/// Ticks per second of times in `/proc` (`USER_HZ`).
#[must_use]
pub fn clock_ticks_per_second() -> u64 {
    let ticks = number(libc::_SC_CLK_TCK).expect("every kernel has a clock");
    u64::try_from(ticks).expect("it is 100 everywhere")
}

fn number(name: libc::c_int) -> Option<usize> {
    // SAFETY: takes a number and returns one; an unknown name is -1.
    let value = unsafe { libc::sysconf(name) };
    usize::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_what_they_are_on_every_machine() {
        assert!(page_size().is_power_of_two() && page_size() >= 4096);
        assert_eq!(clock_ticks_per_second(), 100);
    }
}
