//! Ends of sockets that the kernel knows and no engine reads: they are unknown, and so is whether rules match.

use e2e::{Engine, Fixture, Place, Watch, Watched, need_root};

const RULES: &str = "\
- rule: Sender
  desc: who sent it
  condition: evt.type in (recvfrom, recvmsg, recvmmsg) and fd.rip = 203.0.113.7
  output: seen %evt.type
  priority: INFO
- rule: Sender here
  desc: who sent it
  condition: evt.type in (recvfrom, recvmsg, recvmmsg) and fd.rip = 127.0.0.1
  output: seen %evt.type
  priority: INFO
";

fn receive(engine: Engine, how: &str) -> Watched {
    let fixture = Fixture::compile("receives");
    let watch = Watch::new(["true"]).engine(engine).place(Place::Host);
    let program = watch.scratch().program(fixture.program(), "receives");
    let watched = watch
        .command([program.display().to_string(), how.to_owned()])
        .rules(RULES)
        .run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    watched
}

fn undecided(watched: &Watched) -> u64 {
    let stats = watched.stats.as_ref();
    let count = stats.and_then(|stats| stats["pieces"]["undecided"].as_u64());
    count.expect("the stats have it")
}

fn check(engine: Engine) {
    // Three calls, of which two rules hang on who sent it.
    let watched = receive(engine, "anybody");
    assert_eq!(undecided(&watched), 6, "{}", watched.story());
    let watched = receive(engine, "connected");
    assert_eq!(undecided(&watched), 0, "{}", watched.story());
    assert_eq!(watched.of("Sender here").len(), 3, "{}", watched.story());
    assert_eq!(watched.of("Sender").len(), 0, "{}", watched.story());
    // Nothing was received, so nobody has sent it.
    let watched = receive(engine, "nothing");
    assert_eq!(undecided(&watched), 0, "{}", watched.story());
}

#[test]
fn the_sender_of_a_datagram_is_unknown_not_absent() {
    need_root!();
    for engine in [Engine::Notify, Engine::Ptrace, Engine::Ebpf] {
        check(engine);
    }
}
