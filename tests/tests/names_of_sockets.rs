//! Ends of sockets that the kernel knows and no engine reads: they are unknown, and so is whether rules match.

use e2e::{Engine, Environment, Fixture, Watch, WatchResult, need_root};

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

fn receive(engine: Engine, how: &str) -> WatchResult {
    let fixture = Fixture::compile("receives");
    let watch = Watch::new(["true"]).engine(engine).place(Environment::Host);
    let program = watch.scratch().program(fixture.program(), "receives");
    let watched = watch
        .command([program.display().to_string(), how.to_owned()])
        .rules(RULES)
        .run();
    assert_eq!(watched.code(), 0, "{}", watched.story());
    watched
}

fn undecided(watched: &WatchResult) -> u64 {
    let stats = watched.stats.as_ref();
    let count = stats.and_then(|stats| stats["counters"]["undecided"].as_u64());
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

const UNSPECIFIED_RULES: &str = "\
- rule: Bound
  desc: what it is bound to
  condition: evt.type = bind and fd.sport = 7413
  output: seen %evt.type %fd.name
  priority: INFO
- rule: Sent
  desc: where to
  condition: evt.type in (connect, sendto, sendmsg, sendmmsg) and fd.rip = 127.77.0.9
  output: seen %evt.type %fd.name
  priority: INFO
";

/// The kernel takes an address that says `AF_UNSPEC` for the socket's own family, but for a connect.
#[test]
fn an_address_without_a_family_is_what_the_socket_takes_it_for() {
    need_root!();
    let fixture = Fixture::compile("unspecified");
    for engine in [Engine::Notify, Engine::Ptrace, Engine::Ebpf] {
        for (how, expected) in [
            ("bind", Some("Bound")),
            ("sendto", Some("Sent")),
            ("sendmsg", Some("Sent")),
            ("sendmmsg", Some("Sent")),
            ("six", None),
            ("dissolve", None),
        ] {
            let watch = Watch::new(["true"]).engine(engine).place(Environment::Host);
            let program = watch.scratch().program(fixture.program(), "unspecified");
            let watched = watch
                .command([program.display().to_string(), how.to_owned()])
                .rules(UNSPECIFIED_RULES)
                .run();
            // A machine without IPv6 has no such socket.
            if how != "six" {
                assert_eq!(watched.code(), 0, "{how}: {}", watched.story());
            }
            for rule in ["Bound", "Sent"] {
                let alerts = usize::from(expected == Some(rule));
                assert_eq!(watched.of(rule).len(), alerts, "{how}: {}", watched.story());
            }
            assert_eq!(undecided(&watched), 0, "{how}: {}", watched.story());
        }
    }
}

const LISTENING_RULES: &str = "\
- rule: Listening
  desc: by its port
  condition: evt.type = listen and fd.sport = 7414
  output: seen %fd.name
  priority: INFO
- rule: Listening elsewhere
  desc: by another port
  condition: evt.type = listen and fd.sport exists and fd.sport != 7414
  output: seen %fd.name
  priority: INFO
";

/// The call makes it a server's socket, and gives it a port if it has none.
#[test]
fn a_socket_that_begins_to_listen_has_its_port() {
    need_root!();
    let program = "import socket; bound = socket.socket(); bound.setsockopt(1, 2, 1); \
                   bound.bind(('127.0.0.1', 7414)); bound.listen(1); socket.socket().listen(1)";
    for engine in [Engine::Notify, Engine::Ptrace, Engine::Ebpf] {
        let watched = Watch::new(["python3", "-c", program])
            .engine(engine)
            .place(Environment::Host)
            .rules(LISTENING_RULES)
            .run();
        assert_eq!(watched.code(), 0, "{}", watched.story());
        for rule in ["Listening", "Listening elsewhere"] {
            assert_eq!(watched.of(rule).len(), 1, "{}", watched.story());
        }
        assert_eq!(undecided(&watched), 0, "{}", watched.story());
    }
}

const PATH_RULES: &str = "\
- rule: Contacted
  desc: by the whole path
  condition: evt.type in (connect, sendto) and fd.name = %F/own.sock
  output: seen %evt.type %fd.name %fd.nameraw
  priority: INFO
- rule: Contacted elsewhere
  desc: another socket
  condition: evt.type in (connect, sendto) and fd.type = unix and fd.name != %F/own.sock
  output: seen %evt.type %fd.name
  priority: INFO
";

/// However it was passed, but for a symbolic link; an abstract name is no path. The program stays a moment: `ebpf` looks
/// at its folder when it gets to the events.
#[test]
fn the_path_of_a_unix_socket_is_whole() {
    need_root!();
    for engine in [Engine::Notify, Engine::Ptrace, Engine::Ebpf] {
        let watch = Watch::new(["true"]).engine(engine).place(Environment::Host);
        let folder = watch.scratch().path().display().to_string();
        let program = format!(
            "import os, socket; os.mkdir('{folder}/in'); os.chdir('{folder}/in')
def meet(name): socket.socket(socket.AF_UNIX).connect_ex(name)
for name in ['../own.sock', './../in/..//own.sock', '{folder}/in/../own.sock']: meet(name)
try: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '../own.sock')
except OSError: pass
for name in ['own.sock', '@own.sock', '\\0own.sock']: meet(name)
import time; time.sleep(0.5)"
        );
        let watched = watch
            .command(["python3", "-c", &program].map(str::to_owned))
            .rules(&PATH_RULES.replace("%F", &folder))
            .run();
        assert_eq!(watched.code(), 0, "{}", watched.story());
        let told = watched.of("Contacted");
        assert_eq!(told.len(), 4, "{}", watched.story());
        assert_eq!(told[0].field("fd.nameraw"), "../own.sock");
        let others = watched.of("Contacted elsewhere");
        let others: Vec<_> = others.iter().map(|alert| alert.field("fd.name")).collect();
        let [own, at] = ["own.sock", "@own.sock"].map(|name| format!("{folder}/in/{name}"));
        assert_eq!(others, [&*own, &*at, "@own.sock"], "{}", watched.story());
        assert_eq!(undecided(&watched), 0, "{}", watched.story());
    }
}

const PROTOCOL_RULES: &str = "\
- rule: Transport
  desc: by the protocol
  condition: evt.type = connect and fd.sport = 7415 and fd.l4proto in (tcp, udp)
  output: seen %fd.l4proto
  priority: INFO
";

/// Multipath TCP is TCP on each path, and UDP-Lite has the ports and packets of UDP.
#[test]
fn relatives_of_tcp_and_udp_are_told_as_these() {
    need_root!();
    let program = "import socket
for kind, protocol in [(1, 262), (2, 136)]:
    try: socket.socket(socket.AF_INET, kind, protocol).connect_ex(('127.0.0.1', 7415))
    except OSError: print('none')";
    for engine in [Engine::Notify, Engine::Ptrace, Engine::Ebpf] {
        let watched = Watch::new(["python3", "-c", program])
            .engine(engine)
            .place(Environment::Host)
            .rules(PROTOCOL_RULES)
            .run();
        assert_eq!(watched.code(), 0, "{}", watched.story());
        // A kernel may lack either.
        let lacking = watched.printed.lines().filter(|line| line.contains("none"));
        let told = watched.of("Transport").len() + lacking.count();
        assert_eq!(told, 2, "{}", watched.story());
    }
}
