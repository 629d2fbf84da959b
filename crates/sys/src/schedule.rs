//! How soon the calling thread gets a processor.

use std::time::Duration;

use crate::error::Result;

/// `struct sched_attr` as all kernels know it.
const ATTRIBUTES_SIZE: u32 = 48;

/// Gives the calling thread, and those that it makes, turns no longer than `turn`: whose turns are short gets
/// them sooner, and no more of them. Its policy becomes the usual one; its priority stays.
///
/// # Kernel
/// Linux 6.12; older ones take it and do nothing.
///
/// # Errors
/// None are known.
pub fn shorten_turns(turn: Duration) -> Result<()> {
    let attributes = libc::sched_attr {
        size: ATTRIBUTES_SIZE,
        sched_policy: libc::SCHED_OTHER.cast_unsigned(),
        sched_flags: 0,
        sched_nice: nice()?,
        sched_priority: 0,
        sched_runtime: u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX),
        sched_deadline: 0,
        sched_period: 0,
    };
    const THIS_THREAD: i32 = 0;
    // SAFETY: the kernel reads `size` bytes of `attributes`, which is as long and lives to the end.
    unsafe {
        syscall!(
            "sched_setattr",
            libc::SYS_sched_setattr,
            THIS_THREAD,
            &raw const attributes,
            0_u32,
        )
    }?;
    Ok(())
}

/// The priority of the calling thread (`nice`).
fn nice() -> Result<i32> {
    // SAFETY: no argument is an address.
    let raw = unsafe {
        syscall!(
            "getpriority",
            libc::SYS_getpriority,
            libc::PRIO_PROCESS,
            0_i32
        )
    }?;
    // The kernel tells 20 less the priority, so that no answer looks like an error.
    Ok(20 - crate::kernel::number(raw))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_can_be_shortened_and_priorities_stay() {
        assert_eq!(
            std::mem::size_of::<libc::sched_attr>(),
            ATTRIBUTES_SIZE as usize
        );
        let before = nice().unwrap();
        let shortened = std::thread::spawn(|| {
            shorten_turns(Duration::from_micros(100)).unwrap();
            nice().unwrap()
        });
        assert_eq!(shortened.join().unwrap(), before);
    }
}
