//! Containers of two builds of `tollgate runtime` at once, as during an upgrade and a downgrade.

use std::path::PathBuf;

use e2e::runtime_fixture::{RuntimeFixture, fields};
use e2e::{need_runtime, need_slow, skip};

/// Names the program of another build.
const PREVIOUS: &str = "TOLLGATE_PREVIOUS_BIN";

/// Each build makes a container; each then serves the other's, and removes it. `old` and `new` are the builds.
const SCRIPT: &str = r#"
new() { bin/tollgate-runtime --runtime runc --root "$PWD/root" "$@"; }
old() { previous/tollgate-runtime --runtime runc --root "$PWD/root" "$@"; }
make() {
    $1 create --bundle b-$2 "$ID-$2" < /dev/null > create.out 2>&1
    $1 start "$ID-$2"
    await $2
}
for round in 1 2 3; do
    make old by-old
    make new by-new
    for build in old new; do
        for name in by-old by-new; do
            case $($build state "$ID-$name") in *'"running"'*) ;; *) exit 94 ;; esac
            $build exec "$ID-$name" echo $build $name
        done
    done
    # Upgrade and downgrade.
    new kill "$ID-by-old" KILL
    new delete --force "$ID-by-old"
    old kill "$ID-by-new" KILL
    old delete --force "$ID-by-new"
    rm out/by-old out/by-new
done
settle
test -z "$(remains "$ID")"
"#;

fn both_builds(agent: &str) {
    need_slow!();
    need_runtime!("runc");
    let Some(previous) = std::env::var_os(PREVIOUS).map(PathBuf::from) else {
        skip!("needs a previous build", || Ok(format!(
            "{PREVIOUS} names none"
        )));
    };
    let settings = format!("runtime: {{agent: {agent}, agent_linger: 1}}\n");
    let ground = RuntimeFixture::new().settings(&settings);
    let folder = ground.scratch.path().join("previous");
    std::fs::create_dir(&folder).expect("it is our folder");
    ground
        .scratch
        .program(&previous, "previous/tollgate-runtime");
    for name in ["by-old", "by-new"] {
        let first = format!("touch /out/{name}; exec sleep 1000");
        ground.bundle(&format!("b-{name}"), &first);
    }
    let (finished, alerts) = ground.run("runc", SCRIPT);
    assert_eq!(finished.code(), 0, "{finished:?}");
    let said = "old by-old\nold by-new\nnew by-old\nnew by-new\n".repeat(3);
    assert_eq!(finished.stdout, said);
    // Each session's program is seen once, as of its container.
    let ids = fields(&alerts, "Program", "container.id");
    let names = fields(&alerts, "Program", "proc.name");
    let echoes = names.iter().zip(&ids).filter(|(name, _)| *name == "echo");
    let mut seen: Vec<_> = echoes.map(|(_, id)| id.clone()).collect();
    seen.sort();
    let of = |name: &str| vec![format!("{}-{name}", ground.id); 6];
    assert_eq!(seen, [of("by-new"), of("by-old")].concat(), "{alerts:?}");
    let internal = alerts
        .iter()
        .filter(|alert| alert.rule.starts_with("Tollgate"));
    let internal: Vec<_> = internal.collect();
    assert!(internal.is_empty(), "{internal:?}");
}

#[test]
fn two_builds_serve_the_containers_of_each_other() {
    both_builds("container");
}

#[test]
fn two_builds_serve_the_containers_of_each_other_with_agents_of_the_host() {
    both_builds("host");
}
