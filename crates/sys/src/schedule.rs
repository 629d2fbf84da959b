//! How soon the calling thread gets a processor.

use std::time::Duration;

use crate::error::Result;

/// `struct sched_attr` as all kernels know it.
const ATTRIBUTES_SIZE: u32 = 48;

/// Gives the calling thread, and those that it makes, turns no longer than `turn`: whose turns are short gets
/// them sooner, and no more of them. A thread of another policy than the usual one keeps what it has.
///
/// # Kernel
/// Linux 6.12; older ones take it and do nothing.
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

/// Gives the calling thread turns of the kernel's length, if they are as long as `turn`: ends what it was born with by
/// [`with_short_turns`].
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
    let is_short = set_turns(before, nanoseconds(turn)).is_ok();
    let made = act();
    if is_short {
        // Of the kernel's length, which others may change; only who had a length of its own gets that back. Should the
        // kernel refuse what it has just granted, turns stay short, which takes nothing from anybody.
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

/// The same with turns of this length, in nanoseconds; 0: the kernel's.
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
