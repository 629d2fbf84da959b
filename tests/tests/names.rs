//! A file that rules name is known by whatever name it is opened: the alert has the name that rules have, and
//! the one that was asked for.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use e2e::{Engine, Environment, Fixture, Identity, Watch, WatchResult, need_root};

/// Ways of `fixtures/ways.c` to open its file by another name; what of them only root can go is left out.
const WAYS: &[&str] = &[
    "n_symlink",
    "n_relative_symlink",
    "n_link_dots",
    "n_chain",
    "n_proc_root",
    "n_proc_cwd",
    "n_dev_fd",
    "n_in_root",
    "n_hard_link",
    "n_chroot_user",
    "n_bind_file",
    "n_bind_folder",
    "n_detached",
    "n_moved_mount",
    "n_pivot",
    "n_renamed",
    "n_moved_folder",
    "n_overlay",
];
/// Ways that only root can go.
const WAYS_OF_ROOT: &[&str] = &["o_handle", "n_chroot"];

const ENGINES: [Engine; 3] = [Engine::Notify, Engine::Ptrace, Engine::Ebpf];

struct Vault {
    watch: Watch,
    root: PathBuf,
}

impl Vault {
    fn new(ways: &Fixture, engine: Engine, place: Environment, identity: Identity) -> Self {
        let watch = Watch::new(["true"])
            .place(place)
            .identity(identity)
            .engine(engine);
        let program = watch.scratch().program(ways.program(), "ways");
        let root = watch.scratch().path().to_owned();
        for name in ["v", "w"] {
            let folder = root.join(name);
            std::fs::create_dir_all(&folder).expect("the scratch folder is writable");
            let everybody = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(&folder, everybody).expect("it is ours");
        }
        let prepared = std::process::Command::new(program)
            .arg("prepare")
            .args([root.join("v"), root.join("w")])
            .status();
        assert!(prepared.is_ok_and(|status| status.success()));
        Self { watch, root }
    }

    fn secret(&self, way: &str) -> String {
        self.root
            .join("v")
            .join(way)
            .join("secret")
            .display()
            .to_string()
    }

    /// Runs a script under a rule on the files of these ways. `@` in it is the folder.
    fn run(self, ways: &[&str], script: &str) -> WatchResult {
        let files: Vec<_> = ways.iter().map(|way| self.secret(way)).collect();
        let rule = format!(
            "- rule: Secret\n  desc: a file by its literal path\n  condition: evt.type in (open, openat, openat2, \
             open_by_handle_at) and fd.name in ({})\n  output: \"name=%fd.name raw=%fd.nameraw\"\n  \
             priority: NOTICE\n",
            files.join(", ")
        );
        let script = script.replace('@', &self.root.display().to_string());
        let command = ["sh", "-c", &script].map(str::to_owned);
        self.watch.rules(&rule).command(command).run()
    }
}

fn is_done(run: &WatchResult, way: &str) -> bool {
    run.printed
        .lines()
        .any(|line| line == format!("{way} done"))
}

fn field<'a>(alert: &'a e2e::Alert, name: &str) -> &'a str {
    alert.fields[name].as_str().unwrap_or_default()
}

/// Each way that can be gone in a place has its alert.
fn each_name_is_known(engine: Engine, place: Environment, identity: Identity, ways: &[&str]) {
    let fixture = Fixture::compile("ways");
    let vault = Vault::new(&fixture, engine, place, identity);
    let root = vault.root.clone();
    let mut script = String::new();
    for way in ways {
        let _ = writeln!(script, "@/ways do {way} @/v @/w");
    }
    let run = vault.run(ways, &script);
    let mut gone = 0;
    for way in ways.iter().filter(|way| is_done(&run, way)) {
        gone += 1;
        let secret = Path::new(&root).join("v").join(way).join("secret");
        let secret = secret.display().to_string();
        let alerts = run.alerts.iter();
        let mut alerts = alerts.filter(|alert| {
            alert.rule == "Secret" && alert.fields["fd.name"].as_str() == Some(&*secret)
        });
        let alert = alerts
            .next()
            .unwrap_or_else(|| panic!("{way} passed:\n{}", run.story()));
        let raw = field(alert, "fd.nameraw");
        assert!(
            *way == "o_handle" || raw != secret,
            "{way}: {raw} is what was asked for"
        );
    }
    // No way to mount anything in a container.
    let least = ways.len().min(9);
    assert!(gone >= least, "{gone} ways:\n{}", run.story());
}

#[test]
fn a_file_is_known_by_every_name_on_a_host() {
    need_root!();
    for engine in ENGINES {
        each_name_is_known(engine, Environment::Host, Identity::Root, WAYS);
        each_name_is_known(engine, Environment::Host, Identity::Root, WAYS_OF_ROOT);
    }
}

#[test]
fn a_file_is_known_by_every_name_to_an_ordinary_user() {
    need_root!();
    for engine in ENGINES {
        each_name_is_known(engine, Environment::Host, Identity::User, WAYS);
    }
}

#[test]
fn a_file_is_known_by_every_name_in_a_container() {
    need_root!();
    for engine in ENGINES {
        for place in [Environment::Below, Environment::Inside] {
            each_name_is_known(engine, place, Identity::Docker, WAYS);
        }
    }
}

/// A name that only looks like that of the file, and a link to another one, raise nothing.
#[test]
fn other_files_stay_what_they_are() {
    need_root!();
    let fixture = Fixture::compile("ways");
    for engine in ENGINES {
        let vault = Vault::new(&fixture, engine, Environment::Host, Identity::Root);
        let run = vault.run(
            &["o_open"],
            "mkdir -p @/other/below @/other/o_open && echo other >@/other/o_open/secret
             ln -s @/other/below @/v/link && cat @/v/link/../o_open/secret
             ln -s @/other/o_open/secret @/w/link && cat @/w/link
             ln @/other/o_open/secret @/w/hard && cat @/w/hard
             cat @/v/o_open/nothing || echo missing
             cat @/v/o_dots/secret",
        );
        assert_eq!(run.code(), 0, "{}", run.story());
        assert_eq!(run.printed.matches("other\n").count(), 3, "{}", run.story());
        assert_eq!(run.alerts, [], "{}", run.story());
    }
}

/// Rules may name a link, and files that are not there yet.
#[test]
fn a_link_and_a_new_file_are_known_by_the_name_that_rules_have() {
    need_root!();
    let fixture = Fixture::compile("ways");
    for engine in ENGINES {
        let vault = Vault::new(&fixture, engine, Environment::Host, Identity::Root);
        let root = vault.root.display().to_string();
        std::os::unix::fs::symlink("/etc/hostname", vault.root.join("v/n_symlink/link"))
            .expect("the folder is ours");
        let rule = format!(
            "- rule: Link\n  desc: a link\n  condition: evt.type in (open, openat) and fd.name = {root}/v/n_symlink/link\n  \
             output: \"name=%fd.name raw=%fd.nameraw\"\n  priority: NOTICE\n\
             - rule: New\n  desc: a new file\n  condition: evt.type in (open, openat, creat) and \
             evt.is_open_write = true and fd.name startswith {root}/v/\n  \
             output: \"name=%fd.name raw=%fd.nameraw\"\n  priority: NOTICE\n"
        );
        let script = format!(
            "cat {root}/v/n_symlink/link >/dev/null; ln -s {root}/v/o_open {root}/w/d; echo x >{root}/w/d/new"
        );
        let command = ["sh", "-c", &script].map(str::to_owned);
        let run = vault.watch.rules(&rule).command(command).run();
        let link = run.of("Link");
        assert!(link.len() == 1, "{}", run.story());
        assert_eq!(
            field(link[0], "fd.name"),
            format!("{root}/v/n_symlink/link")
        );
        let new = run.of("New");
        assert!(new.len() == 1, "{}", run.story());
        assert_eq!(field(new[0], "fd.name"), format!("{root}/v/o_open/new"));
        assert_eq!(field(new[0], "fd.nameraw"), format!("{root}/w/d/new"));
    }
}

/// Files of a folder of which a rule has only the beginning, by names through `/proc/self` and its like.
#[test]
fn files_of_a_folder_are_known_by_names_through_their_callers_own_links() {
    need_root!();
    let fixture = Fixture::compile("ways");
    for engine in ENGINES {
        let vault = Vault::new(&fixture, engine, Environment::Host, Identity::Root);
        let root = vault.root.display().to_string();
        let names = [
            format!("/proc/self/root{root}/v/o_open/secret"),
            format!("/proc/thread-self/root{root}/v/o_open/secret"),
            format!("/proc/self/root/proc/self/../..{root}/v/o_open/secret"),
            format!("/proc/thread-self/../../root{root}/v/o_open/secret"),
            format!("/proc/self/root/proc/thread-self/../../../..{root}/v/o_open/secret"),
            "/proc/self/cwd/secret".to_owned(),
        ];
        let other = format!("/proc/self/root{root}/other");
        let rule = format!(
            "- rule: Below\n  desc: a folder\n  condition: evt.type in (open, openat) and fd.name startswith {root}/v/\n  \
             output: \"name=%fd.name raw=%fd.nameraw\"\n  priority: NOTICE\n\
             - rule: Proc\n  desc: a file of /proc\n  condition: evt.type in (open, openat) and \
             fd.name glob /proc/*/limits\n  output: \"name=%fd.name\"\n  priority: NOTICE\n"
        );
        let script = format!(
            "echo other >{root}/other; cd {root}/v/o_open; cat {} {other} /proc/self/root/proc/self/limits",
            names.join(" ")
        );
        let command = ["sh", "-c", &script].map(str::to_owned);
        let run = vault.watch.rules(&rule).command(command).run();
        assert_eq!(run.code(), 0, "{}", run.story());
        let below = run.of("Below");
        let raw: Vec<_> = below
            .iter()
            .map(|alert| field(alert, "fd.nameraw"))
            .collect();
        assert_eq!(raw, names, "{}", run.story());
        let secret = format!("{root}/v/o_open/secret");
        let are_whole = below.iter().all(|alert| field(alert, "fd.name") == secret);
        assert!(are_whole, "{}", run.story());
        assert_eq!(run.of("Proc").len(), 1, "{}", run.story());
    }
}

/// A slash at the end of a name follows a link, whatever the call says of links.
#[test]
fn a_folder_is_known_by_a_link_with_a_slash_at_its_end() {
    need_root!();
    let script = "import os, sys\n\
                  os.chdir(sys.argv[1])\n\
                  for end in ('/', '/.', ''):\n    \
                  os.open('/proc/self/cwd' + end, os.O_PATH | os.O_NOFOLLOW)\n";
    for engine in ENGINES {
        let watch = Watch::new(["true"]).engine(engine);
        let folder = watch.scratch().path().join("folder");
        std::fs::create_dir(&folder).expect("the scratch folder is writable");
        let folder = folder.display().to_string();
        let rule = format!(
            "- rule: Folder\n  desc: a folder\n  condition: evt.type in (open, openat) and fd.name = {folder}\n  \
             output: \"name=%fd.name raw=%fd.nameraw\"\n  priority: NOTICE\n"
        );
        let command = ["python3", "-c", script, &folder].map(str::to_owned);
        let run = watch.rules(&rule).command(command).run();
        assert_eq!(run.code(), 0, "{}", run.story());
        let told = run.of("Folder");
        let raw: Vec<_> = told
            .iter()
            .map(|alert| field(alert, "fd.nameraw"))
            .collect();
        let with_end = ["/proc/self/cwd/", "/proc/self/cwd/."];
        assert_eq!(raw, with_end, "{}", run.story());
    }
}

/// A file system that is mounted as long as this lives, and that leaves some questions open.
struct Mute {
    server: std::process::Child,
    place: PathBuf,
}

impl Mute {
    fn mount(place: PathBuf) -> Self {
        use std::io::{BufRead as _, BufReader};
        std::fs::create_dir(&place).expect("the scratch folder is writable");
        let fixture = Fixture::compile("mute");
        let mut server = std::process::Command::new(fixture.program())
            .arg(&place)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it was compiled");
        let mut line = String::new();
        let output = server.stdout.take().expect("it is a pipe");
        let read = BufReader::new(output).read_line(&mut line);
        assert!(read.is_ok() && line == "ready\n", "no file system: {line}");
        Self { server, place }
    }

    /// Serves until there is such a file, for 40 s at most; whether there is. What waits for an answer is let go only
    /// with the server, and the agent ends only then.
    fn serve_until(self, end: &Path) -> bool {
        let until = std::time::Instant::now() + std::time::Duration::from_secs(40);
        while !end.exists() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        drop(self);
        end.exists()
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        // Whoever waits for an answer gets none any more.
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(&self.place)
            .status();
    }
}

/// Whoever looks a name up waits for no server that is the workload's own, and so may never answer.
#[test]
fn a_file_system_that_does_not_answer_holds_up_its_caller_alone() {
    need_root!();
    for engine in ENGINES {
        let watch = Watch::new(["true"]).engine(engine);
        let root = watch.scratch().path().display().to_string();
        let mute = Mute::mount(watch.scratch().path().join("mute"));
        std::os::unix::fs::symlink(mute.place.join("folder"), format!("{root}/link"))
            .expect("the scratch folder is writable");
        let rule = format!(
            "- rule: Secret\n  desc: a file\n  condition: evt.type in (open, openat) and fd.name = {root}/secret\n  \
             output: \"name=%fd.name\"\n  priority: NOTICE\n"
        );
        // The second one waits for its link for as long as nobody answers.
        let script = format!(
            "echo secret >{root}/secret; exec 3<{root}/link; \
             timeout -s KILL 1 cat /proc/self/root{root}/mute/link/file; cat {root}/secret; : >{root}/end"
        );
        let command = ["sh", "-c", &script].map(str::to_owned);
        let end = watch.scratch().path().join("end");
        let answers = std::thread::spawn(move || mute.serve_until(&end));
        let run = watch.rules(&rule).command(command).run();
        let has_ended = answers.join().expect("it panics with its own words");
        assert!(has_ended, "the command waits: {}", run.story());
        assert_eq!(run.of("Secret").len(), 2, "{}", run.story());
        // Nobody who receives calls was left behind.
        let mut told = run.alerts.iter();
        assert!(
            !told.any(|alert| alert.rule.ends_with(" timed out")),
            "{}",
            run.story()
        );
    }
}

/// A mount that ends with the test.
struct Mounted(PathBuf);

impl Mounted {
    fn tmpfs(at: PathBuf) -> Self {
        Self::mount(at, &["-t", "tmpfs", "tollgate-names"])
    }

    /// A file system that gives the number of a deleted file to the next one.
    fn ext4(at: PathBuf) -> Self {
        let image = at.with_extension("image").display().to_string();
        let made = std::process::Command::new("sh")
            .args(["-c", "truncate -s 16M $0 && mkfs.ext4 -q $0", &image])
            .status();
        assert!(made.is_ok_and(|status| status.success()), "e2fsprogs");
        Self::mount(at, &["-o", "loop", &image])
    }

    fn mount(at: PathBuf, options: &[&str]) -> Self {
        std::fs::create_dir_all(&at).expect("the folder is ours");
        let mounted = std::process::Command::new("mount")
            .args(options)
            .arg(&at)
            .status();
        assert!(mounted.is_ok_and(|status| status.success()));
        Self(at)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .args(["-l"])
            .arg(&self.0)
            .status();
    }
}

/// Device and inode, and which file had the number last, tell a file: not one of them alone.
#[test]
fn a_file_with_the_number_of_another_one_is_another_file() {
    need_root!();
    for engine in ENGINES {
        let watch = Watch::new(["true"]).engine(engine);
        let root = watch.scratch().path().to_owned();
        // Numbers of a tmpfs begin anew in each.
        let mounts = ["v", "w"].map(|name| Mounted::tmpfs(root.join(name)));
        let disk = Mounted::ext4(root.join("disk"));
        for (mount, text) in mounts.iter().zip(["secret", "other"]) {
            std::fs::write(mount.0.join("file"), format!("{text}\n")).expect("it is ours");
        }
        let root = root.display();
        let rule = format!(
            "- rule: Secret\n  desc: x\n  condition: evt.type in (open, openat) and fd.name in ({root}/v/file, \
             {root}/disk/kept)\n  output: name=%fd.name raw=%fd.nameraw\n  priority: NOTICE\n"
        );
        std::fs::write(disk.0.join("kept"), "kept\n").expect("it is ours");
        let script = format!(
            "[ $(stat -c %i {root}/v/file) = $(stat -c %i {root}/w/file) ] && echo same
             cat {root}/w/file; ln {root}/v/file {root}/v/hard; cat {root}/v/hard
             number=$(stat -c %i {root}/disk/kept); rm {root}/disk/kept
             echo new >{root}/disk/new; [ $(stat -c %i {root}/disk/new) = $number ] && echo again
             cat {root}/disk/new"
        );
        let run = watch
            .rules(&rule)
            .command(["sh", "-c", &script].map(str::to_owned))
            .run();
        let raw: Vec<_> = run
            .of("Secret")
            .iter()
            .map(|alert| field(alert, "fd.nameraw").to_owned())
            .collect();
        assert_eq!(raw, [format!("{root}/v/hard")], "{}", run.story());
        for word in ["same", "again", "new"] {
            let line = format!("{word}\n");
            assert!(run.printed.contains(&line), "{word}: {}", run.story());
        }
    }
}

/// The name that was asked for and the one that rules have, in each alert of a rule.
fn told(run: &WatchResult, rule: &str) -> Vec<String> {
    let alerts = run.of(rule);
    let names =
        |alert: &&e2e::Alert| format!("{} {}", field(alert, "fd.nameraw"), field(alert, "fd.name"));
    alerts.iter().map(names).collect()
}

/// A folder that a rule names has its files by whatever name it is reached; a folder beside it has not.
#[test]
fn files_below_a_folder_that_rules_name_are_known_by_every_name_of_the_folder() {
    need_root!();
    for engine in ENGINES {
        files_below_a_folder_are_known(engine);
    }
}

fn files_below_a_folder_are_known(engine: Engine) {
    let watch = Watch::new(["true"]).engine(engine);
    let root = watch.scratch().path().to_owned();
    for folder in [
        "vault/deep",
        "beside",
        "at",
        "overlay",
        "empty",
        "moved",
        "late",
    ] {
        std::fs::create_dir_all(root.join(folder)).expect("it is ours");
    }
    for file in ["vault/deep/file", "vault/file", "beside/file"] {
        std::fs::write(root.join(file), "x\n").expect("it is ours");
    }
    let root = root.display();
    let rule = format!(
        "- rule: Vault\n  desc: x\n  condition: evt.type in (open, openat) and evt.is_open_read = true and \
         (fd.name startswith {root}/vault/ or fd.name = {root}/late/new)\n  \
         output: name=%fd.name raw=%fd.nameraw\n  priority: NOTICE\n"
    );
    let script = format!(
        "cd {root}; mount --make-rprivate /
         mount --bind beside at; cat at/file; umount at
         mount --bind vault at; cat at/file at/deep/file; umount at
         mount --bind vault/deep at; cat at/file; umount at
         mount -t overlay o -o lowerdir={root}/vault:{root}/empty overlay; cat overlay/deep/file; umount overlay
         chroot {root}/vault/deep /nothing; mount --bind late at; echo y >at/new; cat at/new; umount at
         mv vault moved/v; cat moved/v/deep/file"
    );
    let run = watch
        .rules(&rule)
        .command(["unshare", "-m", "sh", "-c", &script].map(str::to_owned))
        .run();
    let told = told(&run, "Vault");
    let mut wanted = vec![
        ("at/file", "vault/file"),
        ("at/deep/file", "vault/deep/file"),
        ("at/file", "vault/deep/file"),
        ("overlay/deep/file", "vault/deep/file"),
        ("at/new", "late/new"),
        ("moved/v/deep/file", "vault/deep/file"),
    ];
    if engine != Engine::Ebpf {
        // Only the kernel knows a folder that was moved.
        wanted.pop();
    }
    let wanted = wanted.iter();
    let wanted: Vec<_> = wanted
        .map(|(raw, name)| format!("{raw} {root}/{name}"))
        .collect();
    assert_eq!(told, wanted, "{engine:?} {}", run.story());
}

/// Files that rules name appear while the engine looks them up again: each is known by another name at once.
#[test]
fn new_files_are_known_while_the_named_files_are_looked_up() {
    need_root!();
    for engine in ENGINES {
        new_files_are_known(engine);
    }
}

fn new_files_are_known(engine: Engine) {
    const FILES: usize = 80;
    let watch = Watch::new(["true"]).engine(engine);
    let root = watch.scratch().path().to_owned();
    std::fs::create_dir(root.join("at")).expect("it is ours");
    std::fs::write(root.join("moved"), "x\n").expect("it is ours");
    for number in 0..FILES {
        std::fs::create_dir(root.join(format!("late{number}"))).expect("it is ours");
    }
    let root = root.display();
    let names: Vec<_> = (0..FILES)
        .map(|number| format!("{root}/late{number}/new"))
        .collect();
    let rule = format!(
        "- rule: New\n  desc: x\n  condition: evt.type in (open, openat) and evt.is_open_read = true and \
         fd.name in ({root}/moved, {})\n  output: name=%fd.name raw=%fd.nameraw\n  priority: NOTICE\n",
        names.join(", ")
    );
    // Each rename of a file that rules name causes a lookup, up to 20 in a second.
    let script = format!(
        "cd {root}; mount --make-rprivate /
         (while [ ! -e end ]; do mv moved gone; mv gone moved; sleep 0.02; done) &
         n=0; while [ $n -lt {FILES} ]; do
         mount --bind late$n at; echo y >at/new; cat at/new; umount at; n=$((n + 1)); done
         touch end; wait"
    );
    let run = watch
        .rules(&rule)
        .command(["unshare", "-m", "sh", "-c", &script].map(str::to_owned))
        .run();
    let told = told(&run, "New");
    let wanted: Vec<_> = names.iter().map(|name| format!("at/new {name}")).collect();
    assert_eq!(told, wanted, "{engine:?} {}", run.story());
}

/// Files that rules name below the root of a process, on a file system that does not answer: that is reported, and
/// others are evaluated meanwhile.
#[test]
fn files_below_another_root_that_cannot_be_looked_at_are_reported() {
    need_root!();
    let watch = Watch::new(["true"]).engine(Engine::Ebpf);
    let root = watch.scratch().path().display().to_string();
    let jail = watch.scratch().path().join("jail");
    std::fs::create_dir(&jail).expect("the scratch folder is writable");
    testing::copy_program(e2e::which("busybox"), jail.join("sleep")).expect("the jail is writable");
    let mute = Mute::mount(jail.join("mute"));
    let rule = format!(
        "- rule: Secret\n  desc: a file\n  condition: evt.type in (open, openat) and \
         fd.name in ({root}/secret, /mute/link/file)\n  output: \"name=%fd.name\"\n  priority: NOTICE\n"
    );
    // Long enough for the engine to look at a process that is still there.
    let script = format!(
        "echo secret >{root}/secret; for i in 1 2 3; do chroot {root}/jail /sleep 0.2; cat {root}/secret; done; : >{root}/end"
    );
    let command = ["sh", "-c", &script].map(str::to_owned);
    let end = watch.scratch().path().join("end");
    let answers = std::thread::spawn(move || mute.serve_until(&end));
    let run = watch.rules(&rule).command(command).run();
    let has_ended = answers.join().expect("it panics with its own words");
    assert!(has_ended, "the command waits: {}", run.story());
    assert_eq!(run.code(), 0, "{}", run.story());
    // Once by the shell, and three times by cat.
    assert_eq!(run.of("Secret").len(), 4, "{}", run.story());
    let trouble = run.of("Tollgate internal: engine trouble");
    let [trouble] = &trouble[..] else {
        panic!("one look, and a pause after it: {}", run.story());
    };
    assert!(
        trouble
            .output
            .contains("cannot resolve the files that rules name"),
        "{}",
        run.story()
    );
}
