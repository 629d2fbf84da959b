//! CPU time slices of the calling thread.

use std::time::Duration;

use crate::error::Result;

/// Size of `struct sched_attr` in its first version, which all kernels accept.
const ATTRIBUTES_SIZE: u32 = 48;

/// Limits the time slice of the calling thread, and of the threads that it creates, to `turn`. A thread with
/// short slices gets them sooner, but no more CPU time. A thread with another policy than the default keeps
/// its slice.
///
/// # Kernel
/// Linux 6.12; older kernels accept the value and ignore it.
///
/// # Errors
/// None are known.
pub fn shorten_turns(turn: Duration) -> Result<()> {
    let own = get()?;
    match own.sched_policy {
        USUAL => set_turns(own, nanoseconds(turn)),
        _ => Ok(()),
    }
}

/// Restores the kernel's time slice for the calling thread, if its slice is `turn`: reverts the slice that
/// the thread inherited through [`with_short_turns`].
///
/// # Errors
/// None are known.
pub fn lengthen_turns(turn: Duration) -> Result<()> {
    let own = get()?;
    match own.sched_policy == USUAL && own.sched_runtime == nanoseconds(turn) {
        true => set_turns(own, 0),
        false => Ok(()),
    }
}

/// Runs `act` so that the threads and processes that it creates inherit a time slice of at most `turn`, and
/// start soon even if others use all CPUs. Restores the slice of the calling thread afterwards. Changes
/// nothing if the thread has another policy than the default, or if the kernel refuses.
///
/// # Kernel
/// Linux 6.12; older kernels do nothing.
pub fn with_short_turns<T>(turn: Duration, act: impl FnOnce() -> T) -> T {
    let before = get().ok().filter(|own| own.sched_policy == USUAL);
    let Some(before) = before else {
        return act();
    };
    let is_short = set_turns(before, nanoseconds(turn)).is_ok();
    let made = act();
    if is_short {
        // Restores the kernel's slice length, which others may change; only a thread with a length of its own
        // gets that back. If the kernel refuses what it has just granted, slices stay short, which takes CPU
        // time from no thread.
        let _ = set_turns(before, 0);
        if get().is_ok_and(|now| now.sched_runtime != before.sched_runtime) {
            let _ = set_turns(before, before.sched_runtime);
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

/// Sets the time slice in nanoseconds; 0 means the kernel's.
fn set_turns(own: Attributes, sched_runtime: u64) -> Result<()> {
    let attributes = Attributes {
        sched_runtime,
        ..own
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_can_be_shortened_and_the_rest_stays() {
        assert_eq!(std::mem::size_of::<Attributes>(), ATTRIBUTES_SIZE as usize);
        let rest = |own: Attributes| (own.sched_policy, own.sched_flags, own.sched_nice);
        let before = rest(get().unwrap());
        let turn = Duration::from_micros(100);
        let shortened = std::thread::spawn(move || {
            let usual = get().unwrap().sched_runtime;
            shorten_turns(turn).unwrap();
            let short = get().unwrap();
            lengthen_turns(turn).unwrap();
            assert_eq!(get().unwrap().sched_runtime, usual);
            rest(short)
        });
        assert_eq!(shortened.join().unwrap(), before);
    }

    #[test]
    fn who_has_another_policy_keeps_it() {
        let batch = libc::SCHED_BATCH.cast_unsigned();
        let own = std::thread::spawn(move || {
            let mut own = get().unwrap();
            own.sched_policy = batch;
            set_turns(own, 0).unwrap();
            let turn = Duration::from_micros(100);
            shorten_turns(turn).unwrap();
            let born = with_short_turns(turn, || std::thread::spawn(|| get().unwrap()));
            (get().unwrap(), born.join().unwrap())
        });
        let (own, born) = own.join().unwrap();
        assert_eq!((own.sched_policy, born.sched_policy), (batch, batch));
        assert_eq!(own.sched_runtime, born.sched_runtime);
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
