//! podman does the same with a runtime alone and with `tollgate runtime` in front of it.
//!
//! `fixtures/podman_scenarios.sh` is the table. `TOLLGATE_TEST_SCENARIO` names one scenario to run.

use std::fs;
use std::path::Path;
use std::time::Duration;

use e2e::runtime_fixture::{RuntimeFixture, with_own_folders};
use e2e::{installed, need_root, need_runtime, need_slow, skip};

const TABLE: &str = include_str!("../fixtures/podman_scenarios.sh");
/// Time limit of all scenarios with one runtime.
const LIMIT: Duration = Duration::from_secs(1500);

/// Scenarios whose results differ, with the reason. `docs/reference/oci-conformance.md` explains them.
const DIFFERENT: [(&str, &str); 1] = [(
    "seccomp-unconfined",
    "the watch is a seccomp filter, which /proc/self/status shows",
)];

/// Runs all scenarios, alone and watched.
const SCRIPT: &str = r#"
# What podman knows of runtimes by their names; `runtime install podman` writes it for tollgate.
case $RUNTIME in runc) NO_CGROUPS= ;; *) NO_CGROUPS="\"$RUNTIME\", \"tollgate-runtime\"" ;; esac
cat > containers.conf <<END
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
netns = "none"
[engine]
events_logger = "file"
runtime_supports_json = ["runc", "crun", "youki", "tollgate-runtime"]
runtime_supports_nocgroups = [$NO_CGROUPS]
runtime_supports_nocgroup = [$NO_CGROUPS]
END
export CONTAINERS_CONF=$PWD/containers.conf I=localhost/tiny:1.2 ID
mkdir storage; mount -t tmpfs none storage
cat > bin/p <<END
#!/bin/sh
exec podman --root $PWD/storage --runroot $PWD/run --cgroup-manager cgroupfs --log-level error \$FLAGS "\$@"
END
chmod +x bin/p
PATH=$PWD/bin:$PATH
FLAGS=
for applet in $(busybox --list); do test -e image/bin/$applet || ln -s busybox image/bin/$applet; done
mkdir -p image/tmp image/etc image/dev image/proc image/sys
printf 'root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/home/app:/bin/sh\n' > image/etc/passwd
chmod 1777 image/tmp
export FLAGS
tar -C image -c . | p import - $I > import.out 2>&1
cat > functions <<'END'
r() { p run --rm $I "$@"; }
start() { p run -d --name $1 $I sleep 1000 > id; }
await() { for try in $(seq 100); do p exec $1 test -e /tmp/up && return 0; sleep 0.1; done; }
END
play() {
    mkdir "$1.out"
    for scenario in scenarios/*; do
        name=${scenario##*/}
        status=0
        timeout -k 5 60 sh -c '. ./functions; . "./$0"' $scenario < /dev/null > "$1.out/$name" 2>&1 || status=$?
        echo "exit status $status" >> "$1.out/$name"
        timeout -k 5 60 bin/p pod rm -a -f -t 0 > /dev/null 2>&1 || true
        timeout -k 5 60 bin/p rm -a -f -t 0 > /dev/null 2>&1 || true
        rm -rf vol id in profile.json list file err
    done
}
FLAGS=$ALONE
play alone
FLAGS="--runtime $PWD/bin/tollgate-runtime --runtime-flag config=$PWD/tollgate.yaml"
play watched
p run -d --name kept $I sleep 1000 > id
entries | grep -q "/$(cat id)/container.json$"
p rm -f -t 0 kept > kept.out
# podman cleans up in a process of its own, which may still look.
for try in $(seq 100); do umount storage 2> umount.out && break; sleep 0.1; done
if mountpoint -q storage; then cat umount.out >&2; exit 1; fi
settle
entries
test -z "$(entries)"
find /sys/fs/cgroup -depth -type d -path "*/$ID*" -exec rmdir {} + 2> /dev/null || true
"#;

/// Name and script of each scenario.
fn scenarios() -> impl Iterator<Item = (&'static str, &'static str)> {
    let wanted = std::env::var("TOLLGATE_TEST_SCENARIO").ok();
    let parts = TABLE.split("\n@ ").skip(1);
    let parts = parts.map(|part| part.split_once('\n').expect("a name and a script"));
    parts.filter(move |(name, _)| wanted.as_deref().is_none_or(|wanted| wanted == *name))
}

/// Replaces what differs between any two runs: ids, folders, and the name of the runtime in messages of podman.
fn normalised(text: &str, folder: &Path, runtime: &str) -> String {
    let folder = folder.to_str().expect("the folder has a readable name");
    let text = text
        .replace(&format!("{folder}/bin/tollgate-runtime"), "RUNTIME")
        .replace(runtime, "RUNTIME");
    let mut result = String::new();
    for word in text.split_inclusive(|c: char| !c.is_ascii_hexdigit()) {
        let hex = word.trim_end_matches(|c: char| !c.is_ascii_hexdigit());
        if hex.len() >= 12 {
            result.push_str("ID");
            result.push_str(&word[hex.len()..]);
        } else {
            result.push_str(word);
        }
    }
    result
}

/// Returns what podman is told to use the runtime alone. The embedded one is a part of this program, so alone it is
/// this program without a watch.
fn alone(ground: &RuntimeFixture, runtime: &str) -> String {
    if runtime != "embedded" {
        return e2e::which(runtime).display().to_string();
    }
    let settings = "runtime: {binary: embedded, watch: none}\n";
    let settings = ground.scratch.file("alone.yaml", 0o644, settings);
    let program = ground.scratch.path().join("bin/tollgate-runtime");
    format!(
        "{} --runtime-flag config={}",
        program.display(),
        settings.display()
    )
}

/// Plays the table. Returns what differs.
fn play(runtime: &str) -> Vec<String> {
    let ground = RuntimeFixture::new().settings(&format!("runtime: {{binary: {runtime}}}\n"));
    let path = ground.scratch.path().to_owned();
    let mut count = 0;
    for (name, script) in scenarios() {
        ground
            .scratch
            .file(&format!("scenarios/{name}"), 0o644, script);
        count += 1;
    }
    let alone = alone(&ground, runtime);
    let script = with_own_folders(&format!("ALONE='--runtime {alone}'\n{SCRIPT}"));
    let (finished, _) = ground.run_within(runtime, &script, LIMIT);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let mut different = Vec::new();
    for (name, _) in scenarios() {
        let read = |mode: &str| {
            let text = fs::read(path.join(format!("{mode}.out/{name}"))).expect("it was written");
            normalised(&String::from_utf8_lossy(&text), &path, &alone)
        };
        let (alone, watched) = (read("alone"), read("watched"));
        if std::env::var_os("TOLLGATE_TEST_SCENARIO").is_some() {
            println!("{alone}");
        }
        if alone != watched {
            println!("{runtime}: {name}: alone:\n{alone}watched:\n{watched}");
            different.push(name.to_owned());
        }
    }
    println!(
        "{runtime}: {} of {count} scenarios are the same",
        count - different.len()
    );
    different
}

fn check(runtime: &str) {
    let mut different = play(runtime);
    different.retain(|name| !DIFFERENT.iter().any(|(listed, _)| listed == name));
    assert!(different.is_empty(), "{runtime}: {different:?}");
}

macro_rules! scenarios_with {
    ($test:ident, $runtime:literal) => {
        #[test]
        fn $test() {
            need_root!();
            need_slow!();
            need_runtime!($runtime);
            if !installed("podman") {
                skip!("needs podman", || Ok(
                    "it is in no folder of PATH".to_owned()
                ));
            }
            check($runtime);
        }
    };
}

scenarios_with!(podman_does_the_same_with_runc, "runc");
scenarios_with!(podman_does_the_same_with_crun, "crun");
scenarios_with!(podman_does_the_same_with_youki, "youki");
scenarios_with!(podman_does_the_same_with_the_embedded_runtime, "embedded");
