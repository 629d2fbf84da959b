//! A keeper, and an agent that reports, killed at each place between two changes of the shared state: the next one
//! makes every number right.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use abi::{Arch, Syscall};
use capture::notify::ActivePolicy;
use sys::notify::{Listener, Notification};
use sys::seccomp::{self, FilterFlags, SockFilter};

use super::super::crash::testing::run_until;
use super::super::shared_state::{Cause, Gaps, SharedState};
use super::gap::UnwatchedInterval;
use super::{OnAgentDeath, Policy};

/// More places than any of the processes passes.
const ALL: u64 = 200;
const LIMIT: Duration = Duration::from_secs(20);

/// A thread that makes getpgid(2) each time that it is asked to; a listener gets the call.
struct Caller {
    ask: Sender<()>,
    results: Receiver<rustix::io::Result<()>>,
    listener: Listener,
}

impl Caller {
    fn start() -> Self {
        let (ask, asked) = channel();
        let (answer, results) = channel();
        let (give, given) = channel();
        std::thread::spawn(move || {
            seccomp::set_no_new_privs().expect("it is always allowed");
            let flags = FilterFlags::NEW_LISTENER;
            let listener = seccomp::install_filter(&filter(), flags).expect("a filter");
            give.send(listener.expect("with a listener"))
                .expect("the test waits");
            while asked.recv().is_ok() {
                let result = rustix::process::getpgid(None).map(drop);
                answer.send(result).expect("the test waits");
            }
        });
        let listener = Listener::new(given.recv().expect("the thread gives it"));
        Self {
            ask,
            results,
            listener,
        }
    }

    fn call(&self) {
        self.ask.send(()).expect("the thread waits");
    }

    fn result(&self) -> rustix::io::Result<()> {
        self.results.recv_timeout(LIMIT).expect("it is answered")
    }
}

/// Returns a filter that gives getpgid(2) to the listener.
fn filter() -> [SockFilter; 4] {
    let native = Arch::native().expect("a known architecture");
    let number = Syscall::GETPGID.number(native).expect("it has one");
    let load = seccomp::BPF_LD | seccomp::BPF_W | seccomp::BPF_ABS;
    let equal = seccomp::BPF_JMP | seccomp::BPF_JEQ | seccomp::BPF_K;
    let answer = seccomp::BPF_RET | seccomp::BPF_K;
    [
        SockFilter::stmt(load, seccomp::DATA_NR),
        SockFilter::jump(equal, number, 0, 1),
        SockFilter::stmt(answer, seccomp::SECCOMP_RET_USER_NOTIF),
        SockFilter::stmt(answer, seccomp::SECCOMP_RET_ALLOW),
    ]
}

/// What one keeper does of an unwatched interval.
struct Keeping<'a> {
    shared_state: &'a SharedState,
    caller: &'a Caller,
    confiner: &'a ActivePolicy,
    on_agent_death: OnAgentDeath,
}

impl Keeping<'_> {
    /// Runs a keeper that is killed when it has passed so many places. Returns whether it was not.
    fn run(&self, places: u64) -> bool {
        let keeper = || {
            self.shared_state.count_lost_alerts(0);
            let policy = Policy {
                on_agent_death: self.on_agent_death,
                limit: Duration::ZERO,
                refuse_non_dumpable: false,
            };
            let parts = (self.shared_state, Some(self.confiner));
            let gap = UnwatchedInterval::of(parts, &self.caller.listener, policy, Cause::Killed);
            gap.take_over_keepers();
            gap.record(0);
            gap.take_over_held(0);
            while super::super::inherited::has_calls(&self.caller.listener) {
                gap.receive();
            }
            gap.end();
        };
        run_until(places, keeper).is_some()
    }
}

/// Who has received the call that waits when the agent dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Nobody,
    /// A receiver of the agent that has begun with it.
    Agent,
}

fn wait_for_call(caller: &Caller) {
    let begun = Instant::now();
    while !super::super::inherited::has_calls(&caller.listener) {
        assert!(begun.elapsed() < LIMIT, "no call");
        std::thread::yield_now();
    }
}

fn total(gaps: &Gaps) -> u64 {
    gaps.calls.iter().map(|(_, count)| count).sum()
}

/// An interval with one call, in which keepers are killed at `places` one after the other. Returns whether the last of
/// them was not killed.
fn interval(holder: Holder, on_agent_death: OnAgentDeath, places: &[u64]) -> bool {
    let (shared_state, _file) = SharedState::create().expect("memory");
    let caller = Caller::start();
    let confiner = ActivePolicy::new(Default::default());
    let seat = shared_state.pulse(0).seat();
    for _ in 0..3 {
        shared_state.alert_queued(0);
    }
    shared_state.alerts_settled(0, 1);
    let begun = Instant::now();
    caller.call();
    wait_for_call(&caller);
    if holder == Holder::Agent {
        let mut call = Notification::default();
        caller.listener.receive(&mut call).expect("it waits");
        seat.received(&call);
    }
    let keeping = Keeping {
        shared_state: &shared_state,
        caller: &caller,
        confiner: &confiner,
        on_agent_death,
    };
    let mut has_ended = false;
    for killed_at in places {
        has_ended = keeping.run(*killed_at);
    }
    assert!(keeping.run(ALL), "the last keeper lives");
    let elapsed = u64::try_from(begun.elapsed().as_nanos()).expect("seconds");
    let is_denied = caller.result().is_err();
    let story = format!("{holder:?} {on_agent_death:?} {places:?}");
    assert_eq!(is_denied, on_agent_death == OnAgentDeath::Deny, "{story}");
    let (passed, denied) = (shared_state.passed(Cause::Killed), shared_state.denied());
    assert_eq!(passed + denied, 1, "{story}");
    // Whether the agent had allowed the call, or the keeper's refusal has arrived, is known to the killed keeper alone.
    // What may have passed counts as passed.
    let is_unknown = holder == Holder::Agent && is_denied;
    assert!(denied == u64::from(is_denied) || is_unknown, "{story}");
    let gaps = shared_state.gaps_to_tell().expect(&story);
    assert_eq!(total(&gaps), 1, "{story}");
    assert_eq!(gaps.lost_alerts, 2, "{story}");
    assert_eq!(shared_state.lost_alerts(), 2, "{story}");
    assert!(
        gaps.lasted_ns <= elapsed,
        "{story}: {} of {elapsed}",
        gaps.lasted_ns
    );
    // One keeper after another, or one interval that the last of them ended again.
    assert!((1..=2).contains(&gaps.count), "{story}: {}", gaps.count);
    has_ended
}

#[test]
fn a_keeper_killed_at_any_place_counts_each_call_and_lost_alert_once() {
    for holder in [Holder::Nobody, Holder::Agent] {
        for on_agent_death in [OnAgentDeath::Continue, OnAgentDeath::Deny] {
            let places = (0..ALL).find(|places| interval(holder, on_agent_death, &[*places]));
            let places = places.expect("it passes fewer places");
            assert!(places > 20, "{places}");
        }
    }
}

#[test]
fn two_keepers_killed_one_after_the_other_at_any_places_count_each_call_once() {
    let kill_after = |places: &[u64]| {
        let has_ended = interval(Holder::Nobody, OnAgentDeath::Continue, places);
        !has_ended
    };
    let firsts = (0..ALL).take_while(|first| kill_after(&[*first]));
    let seconds = firsts.map(|first| {
        let seconds = (0..ALL).take_while(|second| kill_after(&[first, *second]));
        seconds.count()
    });
    let seconds: Vec<_> = seconds.collect();
    assert!((21..200).contains(&seconds.len()), "{seconds:?}");
    assert!(seconds.iter().all(|count| *count < 200), "{seconds:?}");
}

#[test]
fn an_agent_killed_at_any_place_of_a_report_hides_no_call() {
    let report_is_cut = |places: &u64| {
        let (shared_state, _file) = SharedState::create().expect("memory");
        let gap = &shared_state.gap;
        let pass = |intervals: u64, calls: u64| {
            gap.begun.set(intervals);
            gap.calls[1].set(calls);
            gap.lasted_ns.set(calls * 10);
            gap.ended.set(intervals);
        };
        pass(1, 4);
        let first = shared_state.gaps_to_tell().expect("one is over");
        let is_done = run_until(*places, || shared_state.gaps_reported(&first)).is_some();
        pass(2, 7);
        let second = shared_state.gaps_to_tell().expect("one more is over");
        // What the first may have delivered is told again; nothing is left out.
        let expected = if is_done { 3..=3 } else { 3..=7 };
        assert!(expected.contains(&total(&second)), "{places}: {second:?}");
        shared_state.gaps_reported(&second);
        assert_eq!(shared_state.gaps_to_tell(), None);
        !is_done
    };
    let cut = (0..ALL).take_while(report_is_cut).count();
    assert!((1..200).contains(&cut), "{cut}");
}
