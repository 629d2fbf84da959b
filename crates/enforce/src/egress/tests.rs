//! Tests of denied addresses: the table alone, and programs that try each way to reach one, in a control group and a network
//! of their own.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use policy::Policy;

use super::programs::{EgressPrograms, LoadedEgress};
use super::table::{EgressTable, what_egress_lacks};
use crate::bpf::{ContainerPlace, Error};

fn policy(rules: &str) -> Policy {
    let text = format!(
        "policy:\n  enforcer: BPF\n  mode: EnhanceProtect\n  enhanceProtect:\n    privileged: true\n    bpfRawRules: {rules}\n"
    );
    let (mut policies, problems) = policy::load("p.yaml", &text);
    assert!(
        problems.iter().all(|problem| !problem.is_error()),
        "{problems:?}"
    );
    policies.remove(0)
}

fn denying(destinations: &str) -> Policy {
    policy(&format!(
        "{{network: {{egress: {{toDestinations: [{destinations}]}}}}}}"
    ))
}

fn table(destinations: &str) -> EgressTable {
    EgressTable::of(&denying(destinations)).unwrap()
}

/// The ranges of ports that the longest prefix with an address denies, as the kernel finds them; `None` if no prefix has it.
fn found(table: &EgressTable, address: &str) -> Option<(bool, Vec<(u16, u16)>)> {
    let address: Ipv4Addr = address.parse().unwrap();
    let address = u128::from_be_bytes(address.to_ipv6_mapped().octets());
    let mut entries: Vec<_> = table.entries().collect();
    entries.sort_by_key(|(key, _)| {
        std::cmp::Reverse(u32::from_ne_bytes(key[..4].try_into().unwrap()))
    });
    let has = |key: &[u8]| {
        let length = u32::from_ne_bytes(key[..4].try_into().unwrap());
        let prefix = u128::from_be_bytes(key[4..].try_into().unwrap());
        (address ^ prefix).checked_shr(128 - length).unwrap_or(0) == 0
    };
    let (_, value) = entries.into_iter().find(|(key, _)| has(key))?;
    let short = |at: usize| u16::from_ne_bytes([value[2 * at], value[2 * at + 1]]);
    let count = u32::from_ne_bytes(value[64..68].try_into().unwrap());
    let ranges = (0..count as usize).map(|at| (short(at), short(16 + at)));
    Some((value[68] == 1, ranges.collect()))
}

#[test]
fn the_longest_prefix_has_the_ports_of_all_that_contain_it() {
    let table = table(
        "{qualifiers: [deny], cidr: 10.0.0.0/8, ports: [{port: 80}, {port: 90, endPort: 99}]}, \
         {qualifiers: [deny], cidr: 10.1.0.0/16, ports: [{port: 81}, {port: 95, endPort: 120}]}, \
         {qualifiers: [deny], ip: 10.1.2.3}, {qualifiers: [deny], ip: 10.1.2.4, ports: [{port: 443}]}",
    );
    assert_eq!(found(&table, "11.0.0.1"), None);
    assert_eq!(
        found(&table, "10.9.9.9"),
        Some((false, vec![(80, 80), (90, 99)]))
    );
    assert_eq!(
        found(&table, "10.1.9.9"),
        Some((false, vec![(80, 81), (90, 120)]))
    );
    assert_eq!(found(&table, "10.1.2.3"), Some((true, vec![])));
    assert_eq!(
        found(&table, "10.1.2.4"),
        Some((false, vec![(80, 81), (90, 120), (443, 443)]))
    );
}

#[test]
fn what_control_groups_do_not_enforce_is_named() {
    let file = "{files: [{qualifiers: [deny], pattern: /etc/shadow, permissions: [read]}]}";
    let lacks = what_egress_lacks(&policy(file));
    assert_eq!(lacks, ["`bpfRawRules.files[0]` needs BPF LSM"]);
    let audited = denying("{qualifiers: [deny, audit], ip: 10.0.0.1}");
    let lacks = what_egress_lacks(&audited);
    assert!(lacks[0].contains("asks for reports"), "{lacks:?}");
    assert!(matches!(
        EgressTable::of(&audited),
        Err(Error::Lacks { .. })
    ));
    assert!(what_egress_lacks(&denying("{qualifiers: [deny], ip: 10.0.0.1}")).is_empty());
}

#[test]
fn a_policy_with_too_many_ranges_is_refused() {
    let ports: Vec<String> = (0..17)
        .map(|at| format!("{{port: {}}}", 100 + 2 * at))
        .collect();
    let destination = format!(
        "{{qualifiers: [deny], ip: 10.0.0.1, ports: [{}]}}",
        ports.join(", ")
    );
    let error = EgressTable::of(&denying(&destination)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the policy has too many ranges of ports at one address for BPF, 16 are possible"
    );
}

/// Tries every way to reach an address and writes a line for each: `NAME RESULT`, where the result is `denied`, or anything
/// else. Arguments: the address and the port; it is one of this network.
const TRY: &str = include_str!("try.py");

/// Name of a way, and what came of it.
type Way = (String, String);

/// A process in a control group and a network of its own, which runs `try.py` once for each line that it gets.
struct Group {
    path: PathBuf,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// Where control groups of version 2 are mounted here.
fn hierarchy() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let at = mount
        .expect("control groups of version 2 are mounted")
        .split(' ')
        .nth(4);
    PathBuf::from(at.unwrap())
}

/// Drops the capabilities with which programs could be removed.
const KEPT_IN: &str = "setpriv --bounding-set=-sys_admin,-bpf --inh-caps=-sys_admin,-bpf";

impl Group {
    /// `sees_groups`: the process sees the control groups of the host.
    fn start(name: &str, sees_groups: bool) -> Self {
        Self::with(name, sees_groups, KEPT_IN)
    }

    /// Like [`Group::start`]; `by` is what begins the last program.
    fn with(name: &str, sees_groups: bool, by: &str) -> Self {
        // Tests that run at once may give the same name.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let (pid, number) = (std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let path = hierarchy().join(format!("tollgate-test-{pid}-{number}-{name}"));
        fs::create_dir(&path).unwrap();
        let unmount = match sees_groups {
            true => "",
            false => {
                "awk '{print $5}' /proc/self/mountinfo | sort -r | grep ^/sys/fs/cgroup | xargs -n1 umount -l;"
            }
        };
        let script = format!(
            "{unmount} ip link set lo up; sysctl -q -w net.ipv4.ping_group_range='0 0' net.ipv4.tcp_fastopen=3;
             for address in 192.0.2.1 192.0.2.2; do ip address add $address/32 dev lo; done;
             for address in 2001:db8::1 2001:db8::2; do ip address add $address/128 dev lo nodad; done;
             exec {by} sh -c 'echo ready; while read -r line; do python3 -c \"$TRY\" $line; echo end; done'"
        );
        let start = format!(
            "echo $$ > {}/cgroup.procs && exec unshare --net --mount --cgroup sh -c \"$SCRIPT\"",
            path.display()
        );
        let mut child = Command::new("sh")
            .args(["-c", &start])
            .env("SCRIPT", script)
            .env("TRY", TRY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut group = Self {
            path,
            input,
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        while group.line() != "ready" {}
        group
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let length = self.output.read_line(&mut line).unwrap();
        assert!(length > 0, "the process of the group has ended");
        line.trim_end().to_owned()
    }

    fn place(&self) -> Result<ContainerPlace, Error> {
        ContainerPlace::of(self.child.id().cast_signed())
    }

    /// What came of each way: pairs of name and result.
    fn try_all(&mut self, address: &str, port: u16) -> Vec<Way> {
        writeln!(self.input, "{address} {port}").unwrap();
        let mut found = Vec::new();
        loop {
            let line = self.line();
            if line == "end" {
                assert!(found.len() > 5, "{found:?}");
                return found;
            }
            let (name, result) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            found.push((name.to_owned(), result.to_owned()));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A process that has ended stays in its group for a moment.
        for _ in 0..100 {
            for folder in [self.path.join("below"), self.path.clone()] {
                let _ = fs::remove_dir(folder);
            }
            if !self.path.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// `CLONE_NEWNS`.
const NEW_MOUNTS: u64 = 0x2_0000;
/// `MS_REC | MS_PRIVATE`.
const PRIVATE: u64 = 1 << 14 | 1 << 18;
/// Name of the policy.
const NAME: &str = "prod/varmor-prod-web.1";

/// Opens the programs in a BPF file system that this thread alone has: what is pinned there ends with the test.
fn open_own() -> EgressPrograms {
    sys::namespace::unshare(NEW_MOUNTS).unwrap();
    sys::namespace::mount(None, c"/", None, PRIVATE, None).unwrap();
    sys::namespace::mount(None, c"/sys/fs/bpf", Some(c"bpf"), 0, None).unwrap();
    EgressPrograms::open().unwrap()
}

/// Ways that a kernel or a machine may lack, which are not tried then.
const OPTIONAL: [&str; 8] = [
    "sctp",
    "mptcp",
    "udp-lite",
    "raw-sctp",
    "raw-dccp",
    "route-udp",
    "route-udp-message",
    "route-tcp",
];

/// What each way came to without a policy, by address.
fn before(group: &mut Group, address: &str) -> Vec<Way> {
    let found = group.try_all(address, 7001);
    for (name, result) in &found {
        let leads_there = ["done", "ECONNREFUSED", "EINPROGRESS"].contains(&&**result);
        assert!(
            leads_there || OPTIONAL.contains(&&**name),
            "{name} does not lead to {address}: {found:?}"
        );
    }
    found
}

/// Every way that leads to the address without a policy is denied, but those of `others`.
fn all_denied(before: &[Way], found: &[Way], others: &[&str]) {
    assert_eq!(before.len(), found.len());
    for ((name, first), (_, result)) in before.iter().zip(found) {
        let is_other = others.contains(&&**name);
        let leads_there = ["done", "ECONNREFUSED", "EINPROGRESS"].contains(&&**first);
        assert!(
            !leads_there || (result == "denied") != is_other,
            "{name}: {found:?}"
        );
    }
}

/// Every way leads to the address as without a policy, but those of `others`, which are denied.
fn none_denied(before: &[Way], found: &[Way], others: &[&str]) {
    for ((name, first), (_, result)) in before.iter().zip(found) {
        let is_other = others.contains(&&**name) && !OPTIONAL.contains(&&**name);
        match is_other {
            true => assert_eq!(result, "denied", "{name}: {found:?}"),
            false if ROUTES.contains(&&**name) => {}
            false => assert_eq!(first, result, "{name}: {found:?}"),
        }
    }
}

/// Ways by options of the header: denied wherever they lead.
const ROUTES: [&str; 3] = ["route-udp", "route-udp-message", "route-tcp"];
/// A packet with options is denied whatever its address: they may lead elsewhere.
const ELSEWHERE: [&str; 1] = ["part-options"];
/// Parts of packets have no port, but the first one.
const PARTS: [&str; 2] = ["part", "part-options"];

/// Ways without a port: a rule with ports is not about them.
const WITHOUT_PORT: [&str; 2] = ["ping", "ping-raw"];

/// Confines the group by a policy, or changes the policy.
fn confine(programs: &EgressPrograms, group: &Group, rules: &str) {
    let confined = programs.confine(
        NAME,
        &table(rules),
        &group.place().unwrap(),
        LoadedEgress::load,
    );
    assert!(confined.unwrap());
}

#[test]
fn no_way_leads_to_a_denied_address_and_all_lead_to_others() {
    testing::need_root!();
    let programs = open_own();
    let mut group = Group::start("ways", false);
    let four = before(&mut group, "192.0.2.1");
    let six = before(&mut group, "2001:db8::1");
    let rules = "{qualifiers: [deny], ip: 192.0.2.1}, {qualifiers: [deny], ip: '2001:db8::1'}";
    confine(&programs, &group, rules);
    // A second time changes nothing.
    confine(&programs, &group, rules);
    all_denied(&four, &group.try_all("192.0.2.1", 7001), &[]);
    all_denied(&six, &group.try_all("2001:db8::1", 7001), &[]);
    none_denied(&four, &group.try_all("192.0.2.2", 7001), &ELSEWHERE);
    none_denied(&six, &group.try_all("2001:db8::2", 7001), &[]);
    let counted = programs.denials(NAME).unwrap();
    assert!(counted.unwrap() > 10, "{counted:?}");
}

/// Rules about one port of some addresses.
fn of_port(port: u16) -> String {
    format!(
        "{{qualifiers: [deny], cidr: 192.0.2.0/30, ports: [{{port: {port}}}]}}, \
         {{qualifiers: [deny], cidr: '2001:db8::/64', ports: [{{port: {port}}}]}}"
    )
}

#[test]
fn a_rule_with_ports_is_about_these_alone_and_a_change_holds_for_the_running_program() {
    testing::need_root!();
    let programs = open_own();
    let mut group = Group::start("ports", false);
    let four = before(&mut group, "192.0.2.1");
    let six = before(&mut group, "2001:db8::1");
    confine(&programs, &group, &of_port(7001));
    all_denied(&four, &group.try_all("192.0.2.1", 7001), &WITHOUT_PORT);
    none_denied(&four, &group.try_all("192.0.2.1", 7002), &PARTS);
    all_denied(&six, &group.try_all("2001:db8::1", 7001), &WITHOUT_PORT);
    none_denied(&six, &group.try_all("2001:db8::1", 7002), &[]);
    programs.change(NAME, &table(&of_port(7002))).unwrap();
    none_denied(&four, &group.try_all("192.0.2.1", 7001), &PARTS);
    all_denied(&four, &group.try_all("192.0.2.1", 7002), &WITHOUT_PORT);
}

#[test]
fn a_container_with_an_older_version_gets_the_rules_of_the_running_ones() {
    testing::need_root!();
    let programs = open_own();
    let mut first = Group::start("first", false);
    let four = before(&mut first, "192.0.2.1");
    confine(&programs, &first, &of_port(7001));
    programs.change(NAME, &table(&of_port(7002))).unwrap();
    let mut second = Group::start("second", false);
    let older = programs.confine(
        NAME,
        &table(&of_port(7001)),
        &second.place().unwrap(),
        LoadedEgress::load,
    );
    assert!(!older.unwrap(), "it is not the version that was given");
    for group in [&mut first, &mut second] {
        all_denied(&four, &group.try_all("192.0.2.1", 7002), &WITHOUT_PORT);
        none_denied(&four, &group.try_all("192.0.2.1", 7001), &PARTS);
    }
}

#[test]
fn the_address_that_is_none_reaches_no_denied_loopback() {
    testing::need_root!();
    let programs = open_own();
    let mut group = Group::start("loopback", false);
    let addresses = ["0.0.0.0", "::", "::ffff:0.0.0.0"];
    let ways = addresses.map(|address| before(&mut group, address));
    let rules = "{qualifiers: [deny], cidr: 127.0.0.0/8}, {qualifiers: [deny], ip: '::1'}";
    confine(&programs, &group, rules);
    for (address, ways) in addresses.iter().zip(&ways) {
        all_denied(ways, &group.try_all(address, 7001), &[]);
    }
}

#[test]
fn groups_below_are_denied_too_and_programs_outlive_what_is_pinned() {
    testing::need_root!();
    let programs = open_own();
    let mut group = Group::start("below", false);
    let four = before(&mut group, "192.0.2.1");
    confine(&programs, &group, "{qualifiers: [deny], ip: 192.0.2.1}");
    programs.remove_ended().unwrap();
    assert_eq!(programs.denials(NAME).unwrap(), Some(0));
    // Whatever becomes of the file system.
    sys::namespace::unmount(c"/sys/fs/bpf", 2).unwrap();
    assert_eq!(fs::read_dir("/sys/fs/bpf").unwrap().count(), 0);
    let below = group.path.join("below");
    fs::create_dir(&below).unwrap();
    fs::write(below.join("cgroup.procs"), group.child.id().to_string()).unwrap();
    all_denied(&four, &group.try_all("192.0.2.1", 7001), &[]);
    none_denied(&four, &group.try_all("192.0.2.2", 7001), &ELSEWHERE);
}

#[test]
fn a_policy_is_forgotten_with_its_last_container() {
    testing::need_root!();
    let programs = open_own();
    let rules = "{qualifiers: [deny], ip: 192.0.2.1}";
    for name in ["first", "second"] {
        let mut group = Group::start(name, false);
        let four = before(&mut group, "192.0.2.1");
        confine(&programs, &group, rules);
        programs.remove_ended().unwrap();
        all_denied(&four, &group.try_all("192.0.2.1", 7001), &[]);
        assert!(programs.denials(NAME).unwrap().is_some());
    }
    programs.remove_ended().unwrap();
    assert_eq!(programs.denials(NAME).unwrap(), None);
    let error = programs.change(NAME, &table(rules)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the set of programs of the policy is gone"
    );
}

#[test]
fn where_groups_cannot_be_seen_none_has_ended() {
    testing::need_root!();
    let programs = open_own();
    let group = Group::start("hidden", false);
    confine(&programs, &group, "{qualifiers: [deny], ip: 192.0.2.1}");
    sys::namespace::mount(None, c"/sys/fs/cgroup", Some(c"tmpfs"), 0, None).unwrap();
    let error = programs.remove_ended().unwrap_err();
    assert!(matches!(error, Error::NoUnifiedHierarchy), "{error}");
    sys::namespace::unmount(c"/sys/fs/cgroup", 0).unwrap();
    assert!(programs.denials(NAME).unwrap().is_some());
}

#[test]
fn a_container_that_could_leave_its_group_is_refused() {
    testing::need_root!();
    let programs = open_own();
    let rules = table("{qualifiers: [deny], ip: 192.0.2.1}");
    let group = Group::start("open", true);
    let error = programs.confine(NAME, &rules, &group.place().unwrap(), LoadedEgress::load);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("could leave its own"), "{error}");
    let group = Group::with("able", false, "");
    let error = programs.confine(NAME, &rules, &group.place().unwrap(), LoadedEgress::load);
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("may have the capability SYS_ADMIN"),
        "{error}"
    );
    assert_eq!(programs.denials(NAME).unwrap(), None, "nothing was loaded");
}

#[test]
fn as_many_prefixes_as_there_may_be_are_ready_within_the_time_of_an_answer() {
    let all: Vec<String> = (0..16_384_u32)
        .map(|at| {
            format!(
                "{{qualifiers: [deny], cidr: 10.{}.{}.0/24}}",
                at >> 8,
                at & 0xff
            )
        })
        .collect();
    let policy = denying(&all.join(", "));
    let begin = std::time::Instant::now();
    let table = EgressTable::of(&policy).unwrap();
    let took = begin.elapsed();
    assert_eq!(table.len(), 16_384);
    // A debug build on a busy machine; a release takes a tenth.
    assert!(took.as_secs() < 5, "{took:?}");
}

#[test]
fn the_kernel_of_the_tests_takes_the_programs() {
    testing::need_root!();
    let _programs = open_own();
    super::programs::try_egress().unwrap();
}
