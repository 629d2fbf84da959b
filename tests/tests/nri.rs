//! Crate `nri` with the real containerd: the order of its events, and what an answer does to a container.
//!
//! `tests/cluster/build` builds that containerd into the cache. Debian's has no NRI.

use std::fs;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use e2e::cluster::{Containerd, IMAGE};
use e2e::cri::{Cri, RunningPod};
use e2e::{Scratch, need_built, need_root, need_runtime};
use nri::message::{
    Container, ContainerAdjustment, LinuxContainerAdjustment, LinuxSeccomp, LinuxSyscall,
    OptionalUInt32,
};
use nri::{Answer, Event, Options, Plugin};

const DEADLINE: Duration = Duration::from_millis(200);
const SLEEP: [&str; 3] = ["/bin/busybox", "sleep", "1000"];
const MKDIR: [&str; 3] = ["/bin/busybox", "mkdir", "/tmp/x"];
/// Annotation of a pod that says what the plug-in does.
const WHAT: &str = "test.example/what";

/// Does with containers what their pods say.
#[derive(Default)]
struct Tester {
    seen: Mutex<Vec<String>>,
    /// Programs of the control group of each container when it was about to start.
    programs: Mutex<Vec<Vec<String>>>,
}

impl Plugin for Tester {
    fn handle(&self, event: &Event) -> Answer {
        let (name, both) = match event {
            Event::Synchronize { pods, containers } => {
                self.see(format!("Synchronize {} {}", pods.len(), containers.len()));
                return Answer::Accept;
            }
            Event::RunPod(pod) => {
                self.see(format!("RunPod {}/{}", pod.namespace, pod.name));
                return Answer::Accept;
            }
            Event::RemovePod(pod) => {
                self.see(format!("RemovePod {}/{}", pod.namespace, pod.name));
                return Answer::Accept;
            }
            Event::Shutdown => return Answer::Accept,
            Event::CreateContainer(both) => ("CreateContainer", both),
            Event::StartContainer(both) => ("StartContainer", both),
            Event::StopContainer(both) => ("StopContainer", both),
            Event::RemoveContainer(both) => ("RemoveContainer", both),
        };
        let (pod, container) = &**both;
        self.see(format!("{name} {}/{}", pod.name, container.name));
        let what = pod.annotations.get(WHAT).map(String::as_str);
        match (name, what) {
            ("CreateContainer", Some("refuse create")) => {
                Answer::Refuse("no such container".to_owned())
            }
            ("StartContainer", Some("refuse start")) => Answer::Refuse("no such start".to_owned()),
            ("StartContainer", Some("stuck")) => {
                thread::sleep(DEADLINE * 3);
                Answer::Accept
            }
            ("CreateContainer", Some("filter")) => Answer::Adjust(Box::new(without_mkdir())),
            ("StartContainer", _) => {
                self.programs
                    .lock()
                    .expect("no test panics with it")
                    .push(programs(container));
                Answer::Accept
            }
            _ => Answer::Accept,
        }
    }

    fn too_late(&self, _: &Event) -> Answer {
        Answer::Refuse("the plug-in is too late".to_owned())
    }

    fn late(&self, _: &Event, answer: Answer) {
        self.see(format!("late {answer:?}"));
    }
}

impl Tester {
    fn see(&self, what: String) {
        self.seen.lock().expect("no test panics with it").push(what);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().expect("no test panics with it"))
    }
}

/// A change of a container: mkdir fails with EDOM, which nothing else makes it fail with.
fn without_mkdir() -> ContainerAdjustment {
    let rule = LinuxSyscall {
        names: vec!["mkdir".to_owned(), "mkdirat".to_owned()],
        action: "SCMP_ACT_ERRNO".to_owned(),
        errno_ret: Some(OptionalUInt32 { value: 33 }),
        args: Vec::new(),
    };
    let policy = LinuxSeccomp {
        default_action: "SCMP_ACT_ALLOW".to_owned(),
        syscalls: vec![rule],
        ..LinuxSeccomp::default()
    };
    ContainerAdjustment {
        linux: Some(LinuxContainerAdjustment {
            seccomp_policy: Some(policy),
        }),
        ..ContainerAdjustment::default()
    }
}

/// Names of the programs in the control group of a container, in the first hierarchy where it has any.
fn programs(container: &Container) -> Vec<String> {
    let group = container.linux.clone().unwrap_or_default().cgroups_path;
    let hierarchies = fs::read_dir("/sys/fs/cgroup")
        .into_iter()
        .flatten()
        .flatten();
    let lists = hierarchies
        .map(|entry| entry.path())
        .chain(["/sys/fs/cgroup".into()]);
    let mut lists = lists.map(|path| {
        path.join(group.trim_start_matches('/'))
            .join("cgroup.procs")
    });
    let list = lists.find_map(|path| {
        fs::read_to_string(path)
            .ok()
            .filter(|list| !list.is_empty())
    });
    let list = list.unwrap_or_default();
    let name = |pid: &str| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(name.trim().to_owned())
    };
    list.lines().filter_map(name).collect()
}

fn start(cri: &mut Cri, name: &str, what: &str) -> (RunningPod, Result<String, String>) {
    let pod = cri
        .run_pod(name, "runc", &[(WHAT, what)])
        .expect("pods are not refused");
    let container = cri.run_container(&pod, IMAGE, &SLEEP);
    (pod, container)
}

/// A plug-in that is connected to containerd, which had one pod before.
struct PluginFixture {
    containerd: Containerd,
    cri: Cri,
    tester: Arc<Tester>,
    session: thread::JoinHandle<Result<(), nri::SessionError>>,
    old: RunningPod,
}

impl PluginFixture {
    fn new(scratch: &Scratch) -> Self {
        let containerd = Containerd::start(scratch);
        let mut cri = Cri::connect(&containerd.cri());
        let (old, container) = start(&mut cri, "old", "");
        container.unwrap_or_else(|error| panic!("{error} {}", containerd.log()));
        let tester = Arc::new(Tester::default());
        let plugin: Arc<dyn Plugin> = Arc::clone(&tester) as _;
        let stream = UnixStream::connect(containerd.nri()).expect("containerd has NRI");
        let options = Options {
            name: "tester".to_owned(),
            index: 10,
            deadline: DEADLINE,
        };
        let session = thread::spawn(move || nri::run(stream, options, &plugin));
        for _ in 0..500 {
            if !tester
                .seen
                .lock()
                .expect("no test panics with it")
                .is_empty()
            {
                break;
            }
            thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(tester.take(), ["Synchronize 1 1"], "{}", containerd.log());
        Self {
            containerd,
            cri,
            tester,
            session,
            old,
        }
    }

    /// Removes pods, and ends containerd and with it the session.
    fn end(mut self, pods: impl IntoIterator<Item = RunningPod>) {
        for pod in pods {
            self.cri.remove_pod(&pod).expect("it is there");
        }
        self.cri.remove_pod(&self.old).expect("it is there");
        let seen = self.tester.take();
        assert!(seen.contains(&"RemovePod prod/old".to_owned()), "{seen:?}");
        drop((self.cri, self.containerd));
        let ended = self.session.join().expect("no handler panics");
        ended.expect("containerd closes the connection");
    }
}

#[test]
fn containerd_asks_before_a_container_is_created_and_before_its_program_starts() {
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let scratch = Scratch::new();
    let mut fixture = PluginFixture::new(&scratch);
    let (plain, container) = start(&mut fixture.cri, "plain", "");
    let made = fixture.cri.exec(&container.unwrap(), &MKDIR).unwrap();
    assert_eq!(made.code, 0, "{made:?}");
    let expected = [
        "RunPod prod/plain",
        "CreateContainer plain/app",
        "StartContainer plain/app",
    ];
    assert_eq!(fixture.tester.take(), expected);
    // The control group is there, and the program of the image has not begun.
    let programs = fixture.tester.programs.lock().unwrap().clone();
    assert!(
        programs.len() == 1 && programs[0].len() == 1 && programs[0][0].starts_with("runc"),
        "{programs:?} {}",
        fixture.containerd.log()
    );
    let (filtered, container) = start(&mut fixture.cri, "filtered", "filter");
    let denied = fixture.cri.exec(&container.unwrap(), &MKDIR).unwrap();
    let text = String::from_utf8_lossy(&denied.stderr).into_owned();
    assert!(
        denied.code != 0 && text.contains("can't create directory"),
        "{text}"
    );
    fixture.end([plain, filtered]);
}

#[test]
fn containerd_runs_no_container_that_the_plug_in_refuses_or_is_late_about() {
    need_root!();
    need_runtime!("runc");
    need_built!("containerd", "containerd-shim-runc-v2", "ctr");
    let scratch = Scratch::new();
    let mut fixture = PluginFixture::new(&scratch);
    for (what, expected) in [
        ("refuse create", "no such container"),
        ("refuse start", "no such start"),
        ("stuck", "the plug-in is too late"),
    ] {
        let (pod, container) = start(&mut fixture.cri, &what.replace(' ', "-"), what);
        let error = container.unwrap_err();
        assert!(error.contains(expected), "{error}");
        fixture.cri.remove_pod(&pod).unwrap();
    }
    // The plug-in is still registered after a handler was late.
    fixture.tester.take();
    let (next, container) = start(&mut fixture.cri, "next", "");
    assert!(container.is_ok(), "{container:?}");
    let seen = fixture.tester.take();
    assert!(
        seen.contains(&"StartContainer next/app".to_owned()),
        "{seen:?}"
    );
    fixture.end([next]);
}
