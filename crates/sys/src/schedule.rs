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
    set(&Attributes {
        size: ATTRIBUTES_SIZE,
        sched_policy: USUAL,
        sched_flags: 0,
        sched_nice: nice()?,
        sched_priority: 0,
        sched_runtime: nanoseconds(turn),
        sched_deadline: 0,
        sched_period: 0,
    })
}

/// Has the threads and processes that `act` makes be born with turns no longer than `turn`, so that they begin soon
/// where others use all processors. The calling thread's own are as before afterwards. Where its policy is another than
/// the usual one, or the kernel refuses, nothing is changed.
///
/// # Kernel
/// Linux 6.12; older ones do nothing.
pub fn with_short_turns<T>(turn: Duration, act: impl FnOnce() -> T) -> T {
    let before = get().ok().filter(|own| own.sched_policy == USUAL);
    let Some(before) = before else {
        return act();
    };
    let with_turn = |sched_runtime| {
        set(&Attributes {
            sched_runtime,
            ..before
        })
    };
    let is_short = with_turn(nanoseconds(turn)).is_ok();
    let made = act();
    if is_short {
        // Of the kernel's length, which others may change; only who had a length of its own gets that back. What the
        // kernel took before it takes again.
        let _ = with_turn(0);
        if get().is_ok_and(|now| now.sched_runtime != before.sched_runtime) {
            let _ = with_turn(before.sched_runtime);
        }
    }
    made
}

type Attributes = libc::sched_attr;

const USUAL: u32 = libc::SCHED_OTHER.cast_unsigned();
const THIS_THREAD: i32 = 0;

fn nanoseconds(turn: Duration) -> u64 {
    u64::try_from(turn.as_nanos()).unwrap_or(u64::MAX)
}

fn set(attributes: &Attributes) -> Result<()> {
    // SAFETY: the kernel reads `size` bytes of `attributes`, which is as long and lives to the end.
    unsafe {
        syscall!(
            "sched_setattr",
            libc::SYS_sched_setattr,
            THIS_THREAD,
            std::ptr::from_ref(attributes),
            0_u32,
        )
    }?;
    Ok(())
}

fn get() -> Result<Attributes> {
    let mut attributes = Attributes {
        size: 0,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes at most the given size, that of `attributes`.
    unsafe {
        syscall!(
            "sched_getattr",
            libc::SYS_sched_getattr,
            THIS_THREAD,
            &raw mut attributes,
            ATTRIBUTES_SIZE,
            0_u32,
        )
    }?;
    Ok(attributes)
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
        assert_eq!(std::mem::size_of::<Attributes>(), ATTRIBUTES_SIZE as usize);
        let before = nice().unwrap();
        let shortened = std::thread::spawn(|| {
            shorten_turns(Duration::from_micros(100)).unwrap();
            nice().unwrap()
        });
        assert_eq!(shortened.join().unwrap(), before);
    }

    #[test]
    fn what_is_made_has_short_turns_and_who_makes_it_has_its_own() {
        let turn = Duration::from_micros(100);
        let turns = || get().unwrap().sched_runtime;
        let born = || std::thread::spawn(turns).join().unwrap();
        let usual = turns();
        let made = with_short_turns(turn, born);
        assert_eq!(turns(), usual);
        assert_eq!(born(), usual);
        // Kernels before 6.12 know no turns of a thread's own.
        assert!(made == nanoseconds(turn) || made == usual, "{made}");
        if made != usual {
            let own = Duration::from_micros(700);
            let kept = std::thread::spawn(move || {
                shorten_turns(own).unwrap();
                with_short_turns(turn, || ());
                turns()
            });
            assert_eq!(kept.join().unwrap(), nanoseconds(own));
        }
    }
}
